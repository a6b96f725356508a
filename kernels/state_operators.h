// What the ZeRO engine computes on the device: rounded gradients, block sums and updates, as work
// on a stream. No operator of a model is needed for it.
//
// Every bit is that of the functions on the CPU (all in kernels/), on every kind of device and with
// any number of threads. All pointers are device memory, aligned to an element.
//
// Threads: the functions enqueue and return; call them from the thread that feeds the stream. The
// operators must outlive the work that they have enqueued. They take no device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/optimizer.h"

namespace penstock::kernels {

class StateOperators {
 public:
  virtual ~StateOperators() = default;

  /// out[i] = round(in[i]) to `dtype` (nearest even), n elements: the one rounding of a gradient.
  virtual void RoundGradients(device::Stream& stream, const float* in, DType dtype, uint64_t n,
                              std::byte* out) = 0;
  /// kernels::BlockSums on the device; sums: [n / 4096] doubles, finite: 1 or 0.
  virtual void BlockSums(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                         double* sums, uint32_t* finite) = 0;
  /// kernels::Update on the device, for tiles whose home it is.
  virtual void Update(device::Stream& stream, const OptimizerScalars& scalars,
                      const OptimizerTile& tile) = 0;
};

/// Creates the operators of a kind of device. `threads` is how many compute threads of the CPU
/// device share the work of a call; other devices do not use it. Errors: kUnavailable, in builds
/// without the device and where OpenMP gives fewer threads.
Result<std::unique_ptr<StateOperators>> CreateStateOperators(device::Kind kind, int threads);

}  // namespace penstock::kernels
