// The fused kernels of causal attention in bf16 and fp16. They enqueue and return. `qkv` and `out`
// are as ModelOperators has them; where a head is a multiple of 16 bytes, so are their addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// The parameters of the fused kernels.
struct CudaAttentionShape {
  DType dtype;        ///< dtype of all tensors; not fp32
  uint64_t tasks;     ///< batch · heads
  uint64_t sequence;  ///< rows of a task
  uint64_t heads;
  uint64_t head_size;     ///< at most kMaxFusedHead
  uint64_t block_memory;  ///< bytes of shared memory that a block on the device may have
};
inline constexpr uint64_t kMaxFusedHead = 128;

void CudaFusedAttentionForward(device::CudaStream& stream, const CudaAttentionShape& shape,
                               const std::byte* qkv, std::byte* out);
/// For each row of each task, the logarithm (base 2) of the sum of its exponentials, and Σ d_out
/// out.
struct CudaRowStatistics {
  float* log_sums;  ///< [tasks, sequence]
  float* deltas;    ///< [tasks, sequence]
};
/// Fills `statistics` on its way.
void CudaFusedAttentionBackward(device::CudaStream& stream, const CudaAttentionShape& shape,
                                const std::byte* qkv, const std::byte* d_out,
                                const CudaRowStatistics& statistics, std::byte* d_qkv);

}  // namespace penstock::kernels
