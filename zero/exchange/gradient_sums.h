// Where the gradients of a step's micro-batches are added up on the device.
//
// With g_i the gradient of micro-batch i of the step, computed from zero, a gradient is ((0 + g_0)
// + g_1) + …, element by element in fp32. The order is that of the micro-batches of all ranks: j ·
// W + q is micro-batch j of rank q of W. So the number of ranks changes no bit.
//
// A module's gradient may be given in more parts than there are micro-batches (a tied table: the
// head's part of each micro-batch, then the embedding's of each). Parts are added in the order in
// which they are given.
//
// Threads: the one that feeds the compute stream.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "offload/layout.h"

namespace penstock::zero {

/// A rank's share of the sums of a module: its trained tiles, one after the other. They are
/// complete on `stream`, and may be overwritten by what is enqueued there next for another module
/// or step.
struct FinishedSums {
  const float* sums = nullptr;
  device::Stream* stream = nullptr;
  kernels::StateOperators* operators = nullptr;  ///< for kernels on that stream
};

class GradientSums {
 public:
  virtual ~GradientSums() = default;

  /// Returns where the kernels of a micro-batch add its gradient, [ModelLayout::TrainedElements];
  /// valid until Add. Errors: kInvalidArgument if another module has the buffer.
  virtual Result<float*> Buffer(offload::ModuleId module, device::Stream& compute) = 0;
  /// Says that the gradient of a micro-batch is complete on the compute stream. Errors:
  /// kInvalidArgument if Buffer was not called.
  virtual Status Add(offload::ModuleId module, device::Stream& compute) = 0;
  /// Says that all gradients of the step were given; what was given since the last Add is one more
  /// micro-batch's. Errors: kInvalidArgument if there is none.
  virtual Result<FinishedSums> Finish(offload::ModuleId module, device::Stream& compute) = 0;
  /// Drops sums that were not finished.
  virtual void EndStep() = 0;
};

}  // namespace penstock::zero
