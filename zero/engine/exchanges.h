// What a step's computation exchanges: gradients, losses and the norm, and weights that are shared.
// The same calls serve one rank, which exchanges nothing, and several.
//
// Owns buffers on the device and borrows the communicator. Threads: the one that feeds the compute
// stream.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "device/device.h"
#include "kernels/state/lamb.h"
#include "kernels/state/state_operators.h"
#include "offload/executor.h"
#include "zero/engine/engine_options.h"
#include "zero/engine/memory_plan.h"
#include "zero/exchange/gradient_sums.h"
#include "zero/exchange/norm_exchange.h"
#include "zero/exchange/rank_link.h"
#include "zero/exchange/step_losses.h"
#include "zero/exchange/weight_gather.h"
#include "zero/exchange/zero_counts.h"
#include "zero/gradient_norm.h"

namespace penstock::zero {

class Exchanges {
 public:
  /// Plans device and host memory as all ranks can. Errors: of PlanMemory; of the communicator.
  Result<MemoryPlan> Plan(const EngineOptions& options, const offload::ShardLayout& layout,
                          device::Device& device);
  /// Allocates what the plan says: nothing, where the caller gives gradients, so that neither sums
  /// nor losses may be asked for. To be called after Plan; all arguments outlive it. Errors: of
  /// the device.
  Status Build(const EngineOptions& options, const offload::ShardLayout& layout,
               const MemoryPlan& plan, device::Device& device, kernels::StateOperators& operators);

  void NumberStep(uint64_t step) {
    if (link_ != nullptr) link_->NumberStep(step);
  }
  void BeginStep();
  /// Finishes the sums of a module; see GradientSums::Finish.
  Result<FinishedSums> Finish(ModuleId module, device::Stream& compute);
  /// Returns where a module's gradients are added up.
  GradientSums& sums() { return *sums_; }
  StepLosses& losses() { return *losses_; }
  /// Returns what completes a module that was brought to the device; none with one rank.
  offload::ShareGatherer* gatherer() { return gather_ ? &*gather_ : nullptr; }
  /// Drops what belongs to the step only, and waits for the exchanges. Errors: of the communicator.
  Status EndStep();
  /// Returns the norm over all ranks from the blocks of this one, and makes `figures` those of all,
  /// with counts of zeros. Errors: of the communicator.
  Result<GradientNorm::Value> Norm(const GradientNorm::Blocks& mine, StepFigures& figures);
  /// Returns the sums of a first pass by rank, of which `mine` are this one's. Errors: of the
  /// communicator.
  Result<std::vector<const kernels::TrustSums*>> GatherTrust(
      std::span<const kernels::TrustSums> mine);
  // See zero/engine/state_port.h.
  void SetNote(const StepNote& note) {
    if (norm_) norm_->SetNote(note);
  }
  std::span<const StepNote> notes() const {
    return norm_ ? norm_->notes() : std::span<const StepNote>();
  }

 private:
  std::unique_ptr<GradientSums> sums_;
  std::unique_ptr<StepLosses> losses_;
  std::optional<ZeroCounter> zeros_;
  std::optional<NormExchange> norm_;
  std::optional<WeightGather> gather_;
  std::unique_ptr<RankLink> link_;  ///< last: it waits for operations on all of these
};

}  // namespace penstock::zero
