// What a step computes with on a device of ours: the half of an engine (zero/engine/engine.h) that
// brings weights there, and takes gradients and losses from there.
//
//   for each use: Acquire(module) … work on compute_stream() … Release(module)
//   for each module with gradients: Gradients(module) … ReduceGradients(module)
//   Losses(…) … ShareLosses(…), where the losses are on the device
//
// Threads: the one that calls the states (zero/engine/state_port.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "device/device.h"
#include "zero/model.h"

namespace penstock::zero {

class DevicePort {
 public:
  virtual ~DevicePort() = default;

  virtual device::Stream& compute_stream() = 0;
  /// Returns the module's flat parameters on the device; tensors lie at layout offsets. Work
  /// enqueued on compute_stream() after the call sees the current version. Any order is served; the
  /// planned order is served without waiting. Errors: of reads and updates that the module depends
  /// on; kInvalidArgument if more modules are held than there are slots.
  virtual Result<const std::byte*> Acquire(ModuleId module) = 0;
  /// Ends a use of the module: kernels enqueued so far are the last that read it.
  virtual void Release(ModuleId module) = 0;
  /// Returns where kernels add the module's fp32 gradient on the device,
  /// [ModelLayout::TrainedElements]; zeros and sums of this step's micro-batches so far (see
  /// zero/exchange/gradient_sums.h). Valid until AddGradients or ReduceGradients. Errors:
  /// kInvalidArgument if another repeated module has it.
  virtual Result<float*> Gradients(ModuleId module) = 0;
  /// Says that the gradient of a micro-batch is complete on compute_stream().
  virtual Status AddGradients(ModuleId module) = 0;
  /// Says that the gradients of all micro-batches are. Their sums are rounded once and copied to
  /// where updates read them, and block sums are taken.
  virtual Status ReduceGradients(ModuleId module) = 0;
  /// Returns where kernels add the losses of this rank's micro-batches on the device,
  /// [micro_batches], zeroed at the first call in a step. All calls in a step, and those of the
  /// other ranks, say as many, and no more than config.gradient_accumulation_steps.
  virtual double* Losses(uint64_t micro_batches) = 0;
  /// Says that they are complete on compute_stream(). See zero/exchange/step_losses.h.
  virtual void ShareLosses(std::function<void(std::span<const double> losses)> arrived) = 0;
};

}  // namespace penstock::zero
