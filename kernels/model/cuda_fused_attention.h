// The fused kernels of causal attention in bf16. They enqueue and return. `qkv` and `out` are as
// ModelOperators has them; where a head is a multiple of 16 bytes, so are their addresses.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// What the fused kernels are told.
struct CudaAttentionShape {
  uint64_t tasks;     ///< batch · heads
  uint64_t sequence;  ///< rows of a task
  uint64_t heads;
  uint64_t head_size;  ///< at most kMaxFusedHead
};
inline constexpr uint64_t kMaxFusedHead = 128;

void CudaFusedAttentionForward(device::CudaStream& stream, const CudaAttentionShape& shape,
                               const BFloat16* qkv, BFloat16* out);
/// Of each row of each task: the logarithm (base 2) of the sum of its exponentials, and Σ d_out
/// out.
struct CudaRowStatistics {
  float* log_sums;  ///< [tasks, sequence]
  float* deltas;    ///< [tasks, sequence]
};
/// Fills `statistics` on its way.
void CudaFusedAttentionBackward(device::CudaStream& stream, const CudaAttentionShape& shape,
                                const BFloat16* qkv, const BFloat16* d_out,
                                const CudaRowStatistics& statistics, BFloat16* d_qkv);

}  // namespace penstock::kernels
