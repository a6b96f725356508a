// The layer norm's CUDA kernels, except the sums over rows (cuda_column_sums.h). They enqueue and
// return; see ModelOperators for what they compute. If rows are multiples of 16 bytes, so are the
// addresses of x, weight, bias, out, d_out and d_x.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

struct CudaNorm {
  DType dtype;
  uint64_t rows;
  uint64_t width;
  const std::byte* x;
  const std::byte* weight;
};

/// `largest`: see ModelOperators::LayerNormForward; may be null.
void CudaNormForward(device::CudaStream& stream, const CudaNorm& norm, const std::byte* bias,
                     float eps, std::byte* out, float* mean, float* rstd, float* largest);
/// d_x (+)= the gradient through the norm.
void CudaNormBackward(device::CudaStream& stream, const CudaNorm& norm, const float* mean,
                      const float* rstd, const std::byte* d_out, bool add_to_d_x, std::byte* d_x);

}  // namespace penstock::kernels
