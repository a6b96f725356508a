// States at home on the device that computes: weights, gradients, master and moments in memory of
// the engine's on the caller's GPU, updated there by kernels (zero::ResidentEngine).
//
// The engine has a stream of its own. Weights are copied from its memory to the caller's and
// gradients from the caller's to its own, on the device. Both happen on the engine's stream, which
// waits for the caller's stream before, and for which the caller's waits afterwards. So all work of
// the engine has one order, and the host waits only for the norm.
//
// Threads: one at a time, within Enter().
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "base/result.h"
#include "device/device.h"
#include "front/cuda_context.h"
#include "front/cuda_driver.h"
#include "front/gradient_inbox.h"
#include "front/plan.h"
#include "front/unit_memory.h"
#include "kernels/state/state_operators.h"
#include "zero/engine/resident_engine.h"

namespace penstock::front {

class DeviceHome {
 public:
  /// Takes the memory of the plan on the calling thread's current device. The plan outlives it.
  /// Errors: kUnavailable without a driver, a context or CUDA in this build; kBudget, with the sum,
  /// if less is free; those of zero::ResidentEngine.
  static Result<std::unique_ptr<DeviceHome>> Create(const Plan& plan);
  ~DeviceHome();
  DeviceHome(const DeviceHome&) = delete;
  DeviceHome& operator=(const DeviceHome&) = delete;

  /// Makes the engine's context current; to be held during every call. If the driver has failed,
  /// its calls fail as well.
  std::optional<ContextScope> Enter();
  /// The same for a call with a stream, within the first scope. Errors: kInvalidArgument for a
  /// stream of another context.
  Result<ContextScope> EnterWith(CuStream stream) const;

  zero::ResidentEngine& states() { return *states_; }

  // Errors of both: the first failure of enqueuing, from then on.
  /// Enqueues the copies of a unit's weights to memory of the device, for work behind them on
  /// `callers`.
  Status CopyWeights(offload::ModuleId module, const UnitMemory& to, CuStream callers);
  /// Enqueues the addition of a gradient behind the work of `callers`; null: zeros.
  Status AddGradient(const GradientInbox::Announced& gradient, const std::byte* values,
                     CuStream callers);
  /// Copies a unit's weights to memory of the host. Errors: of the device.
  Status FetchWeights(offload::ModuleId module, const UnitMemory& to, int threads);
  /// Enqueues the rounding of a tensor's sum; see GradientInbox::Callbacks.
  void RoundSum(offload::ModuleId module, uint32_t tensor, uint64_t sum, std::byte* place);

 private:
  DeviceHome(const CudaDriver& driver, CuContext context) : driver_(driver), context_(context) {}
  Status Build(const Plan& plan);
  Status TryKernels();
  device::CudaStream& stream() { return *stream_; }
  void AddToSum(const GradientInbox::Announced& gradient, const std::byte* values);
  void AddToPlace(const GradientInbox::Announced& gradient, const std::byte* values);
  DType WeightOf(offload::ModuleId module, uint32_t tensor) const;

  const CudaDriver driver_;
  const CuContext context_;
  CuContext callers_ = nullptr;  ///< context that was current at the call
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<kernels::StateOperators> operators_;
  device::DeviceBuffer sums_;  ///< fp32 sums of gradients that are added up separately
  std::unique_ptr<zero::ResidentEngine> states_;
  device::CudaStream* stream_ = nullptr;  ///< the stream of `states_`
};

}  // namespace penstock::front
