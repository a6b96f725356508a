// How much of each gradient is zero, before and after it is rounded to fp16: what a loss scale that
// is too low loses.
//
// The fp32 sums of gradients are read once more for it, where they are complete, and not in every
// step: in the first of an engine, and in one of kCountedSteps after it. Only in fp16.
//
// Threads: the one that feeds the compute stream.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "config/config.h"
#include "device/device.h"
#include "kernels/state/figures.h"
#include "offload/layout.h"
#include "zero/exchange/gradient_sums.h"

namespace penstock::zero {

/// A step of so many is counted.
inline constexpr uint64_t kCountedSteps = 10;

class ZeroCounter {
 public:
  /// Whether a run counts zeros.
  static bool Counts(const config::Config& config) { return config.dtype == DType::kFloat16; }
  /// What it takes of the device, and the same once more of the host.
  static Bytes Need(const offload::ShardLayout& layout, const config::Config& config);
  /// Errors: kBudget; kOutOfMemory.
  static Result<ZeroCounter> Create(const offload::ShardLayout& layout,
                                    const config::Config& config, device::Device& device);

  void BeginStep();
  /// Enqueues the pass over a module's sums, before they are overwritten. All modules of a step
  /// have the same stream.
  void Count(offload::ModuleId module, const FinishedSums& finished);
  /// For a step that is finished; one that is dropped, or was repeated, does not count as one of
  /// kCountedSteps. Returns the counts of this rank's share by tensor, in the order of StepFigures;
  /// none if the step counts nothing. Waits for the stream. Errors: of the stream.
  Result<std::vector<kernels::ZeroCounts>> Take();

 private:
  /// Elements of a tensor in the sums of its module.
  struct Part {
    size_t tensor = 0;  ///< index among all tensors
    uint64_t begin = 0;
    uint64_t elements = 0;
  };

  bool counts_ = false;
  bool counts_step_ = false;
  uint64_t steps_ = 0;  ///< finished steps
  size_t tensors_ = 0;
  std::vector<std::vector<Part>> parts_;  ///< of each module
  device::DeviceBuffer device_;           ///< of each tensor
  device::HostBuffer host_;
  device::Stream* stream_ = nullptr;  ///< stream of the sums, once the step has any
};

}  // namespace penstock::zero
