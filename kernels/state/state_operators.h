// The ZeRO engine's operators on the device: rounded gradients, block sums and updates, as work on
// a stream. They do not need a model's operators.
//
// The bits are those of the CPU functions (in kernels/ and kernels/state), on every kind of device
// and with any number of threads. All pointers are device memory, aligned to an element.
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
#include "kernels/state/optimizer.h"
#include "kernels/state/state_parts.h"

namespace penstock::kernels {

/// Rows of elements of one dtype (fp32 or bf16), each beginning `stride` elements after the one
/// before.
struct ElementRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  uint64_t stride = 0;
  uint64_t count = 0;
};

/// Device memory for BlockFigures of a gradient, one of each a block.
struct DeviceBlockFigures {
  double* sums = nullptr;
  float* largest = nullptr;
  uint32_t* nonfinite = nullptr;
};

/// Elements of a gradient that lie within a block of the flat index.
struct GradientEnd {
  uint64_t begin = 0;
  uint64_t elements = 0;
};

/// What one step does to the parts of a table.
struct PartsUpdate {
  const OptimizerScalars& scalars;
  uint64_t rounding_key = 0;  ///< StochasticRounding::key
  /// LambScalars::negative_step_size of each tensor that a part may name, in device memory. Null:
  /// as the scalars say, which also holds for parts of no tensor.
  const float* step_sizes = nullptr;
};

class StateOperators {
 public:
  virtual ~StateOperators() = default;

  /// Creates operators of the same kind of device; `threads` and errors: as CreateStateOperators.
  virtual Result<std::unique_ptr<StateOperators>> WithThreads(int threads) const = 0;

  /// out[i] = round(in[i]) to `dtype` (nearest even), n elements: the rounding of a gradient when
  /// its sum is complete, and of each micro-batch's before it is sent, where that is configured.
  virtual void RoundGradients(device::Stream& stream, const float* in, DType dtype, uint64_t n,
                              std::byte* out) = 0;
  /// sums[i] = ((sums[i] + parts[0][i]) + parts[1][i]) + …, in fp32, for i below n. Nothing
  /// overlaps.
  virtual void AddInOrder(device::Stream& stream, float* sums, uint64_t n,
                          const ElementRows& parts) = 0;
  /// sums[i] = sums[i] + values[i] in fp32, or values[i] if it is the `first` to be added, for i
  /// below n.
  virtual void AddGradient(device::Stream& stream, const std::byte* values, DType dtype, uint64_t n,
                           bool first, float* sums) = 0;
  /// kernels::BlockSums on the device; sums: [n / 4096] doubles, finite: 1 or 0.
  virtual void BlockSums(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                         double* sums, uint32_t* finite) = 0;
  /// kernels::BlockSumsAndFigures on the device, and behind the blocks' figures those of `ends`
  /// [end_count] (kernels::PartFigures): `figures` are n / 4096 + end_count. `ends` are in device
  /// memory and lie anywhere in the gradient.
  virtual void GradientFigures(device::Stream& stream, const std::byte* gradient, DType dtype,
                               uint64_t n, const GradientEnd* ends, uint64_t end_count,
                               const DeviceBlockFigures& figures) = 0;
  /// Adds to `counts` how many of n values are zero, and how many are when they are rounded to
  /// fp16.
  virtual void AddZeroCounts(device::Stream& stream, const float* values, uint64_t n,
                             ZeroCounts* counts) = 0;
  /// kernels::Update of all parts, with the figures that it makes: `of_blocks`
  /// [parts.measured_blocks]. Their sums are within the bounds of kernels::Update, and their last
  /// bits are the device's.
  virtual void Update(device::Stream& stream, const PartsUpdate& update, const StateParts& parts,
                      WeightFigures* of_blocks) = 0;
  /// kernels::SumForTrust of the parts of tensors: `of_blocks` [parts.measured_blocks].
  virtual void SumForTrust(device::Stream& stream, const OptimizerScalars& scalars,
                           const StateParts& parts, TrustSums* of_blocks) = 0;
};

/// Creates the operators of a kind of device. `threads` is the number of compute threads of the CPU
/// device that share the work of a call; other devices do not use it. Errors: kUnavailable in
/// builds without the device, or if OpenMP gives fewer threads.
Result<std::unique_ptr<StateOperators>> CreateStateOperators(device::Kind kind, int threads);

}  // namespace penstock::kernels
