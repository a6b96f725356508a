// The sums of gradients where several ranks train together: each micro-batch's gradient goes to the
// ranks that own its parts, and is added there in the order of the global batch.
//
// A rank computes the whole gradient of a module's micro-batch into a buffer. Add sends every rank
// its share, in pieces, and adds what arrives, one rank's after the other's. Both run on the
// communicator's stream, beside the kernels of the next micro-batch or module, if there is a second
// buffer for those. What is added is independent of how it is cut into pieces. If gradients are
// sent in less than fp32, each piece is rounded on that stream just before it is sent.
//
// With the order of ranks (config::GradientOrder::kRank) a module's whole gradient stays in its
// buffer until all micro-batches of this rank were added there, and is sent once, at Finish.
//
// Each module that is not repeated has a whole buffer and sums of its own; the repeated ones share
// one or two whole buffers, and their sums.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "offload/layout.h"
#include "zero/exchange/gradient_sums.h"
#include "zero/exchange/rank_link.h"
#include "zero/model.h"
#include "zero/plan/exchange_options.h"
#include "zero/shared_sections.h"

namespace penstock::zero {

class GradientExchange final : public GradientSums {
 public:
  /// What it allocates on the device, each allocation rounded to kDeviceAlignment.
  static Bytes DeviceNeed(const ModelSpec& model, const offload::ShardLayout& layout,
                          const ExchangeOptions& options);
  /// All arguments outlive it. Errors: kBudget; of the operators.
  static Result<std::unique_ptr<GradientExchange>> Create(
      const ModelSpec& model, const offload::ShardLayout& layout, const ExchangeOptions& options,
      device::Device& device, const kernels::StateOperators& operators, RankLink& link);

  Result<float*> Buffer(ModuleId module, device::Stream& compute) override;
  Status Add(ModuleId module, device::Stream& compute) override;
  /// The sums are complete on the communicator's stream.
  Result<FinishedSums> Finish(ModuleId module, device::Stream& compute) override;
  void EndStep() override;

 private:
  /// The whole gradient of one micro-batch.
  struct Whole {
    device::DeviceBuffer buffer;
    device::Event sent;              ///< the last exchange has read it
    std::optional<ModuleId> module;  ///< module whose gradient is computed into it
  };
  struct Sums {
    device::DeviceBuffer buffer;
    std::optional<ModuleId> module;  ///< module to whose sums something was added
  };
  struct Module {
    std::string name;
    std::string what;
    std::vector<SharedSection> sections;  ///< trained ones
    Bytes whole_size;
    Bytes sums_size;
    std::vector<size_t> wholes;  ///< the buffers that it takes in turn
    size_t sums = 0;
  };

  GradientExchange(RankLink& link, const ExchangeOptions& options)
      : link_(link), dtype_(options.dtype), order_(options.order) {}
  Whole* OpenOf(ModuleId module);
  /// Sends what is in the module's whole buffer to its owners, and adds what arrives.
  void Send(ModuleId module, Whole& whole, device::Stream& compute);
  /// What every rank is sent of a share at once.
  struct Outgoing {
    const std::byte* data = nullptr;
    Bytes stride;  ///< distance between the parts of consecutive ranks
  };
  /// Returns `piece` elements of each rank's share, from the first on at `first`, rounded if they
  /// are to be.
  Outgoing RoundPiece(const float* first, uint64_t share, uint64_t piece);
  /// Sends a section of the whole gradient and adds what arrives to its part of the sums.
  void Exchange(const Module& module, const SharedSection& section, const float* whole,
                float* sums);

  RankLink& link_;
  const kernels::DType dtype_;
  const config::GradientOrder order_;
  /// With one thread, which is the stream's: those of the compute stream have the cores.
  std::unique_ptr<kernels::StateOperators> operators_;
  std::vector<Module> modules_;
  std::vector<Whole> wholes_;
  std::vector<Sums> sums_;
  device::DeviceBuffer rounded_;   ///< [ranks, piece]; empty if nothing is rounded
  device::DeviceBuffer arriving_;  ///< [ranks, piece]
  uint64_t turn_ = 0;              ///< counts the whole gradients of the step
};

}  // namespace penstock::zero
