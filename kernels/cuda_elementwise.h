// Elementwise CUDA kernels, and the ones of gradients and updates. They enqueue and return; what
// they compute is stated at Operators. Pointers are device memory, aligned to an element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/optimizer.h"

namespace penstock::kernels {

/// GELU over n elements, and d_x = d_out * gelu'(x); d_x may be d_out.
void CudaGeluForward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                     std::byte* out);
void CudaGeluBackward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                      const std::byte* d_out, std::byte* d_x);

void CudaRoundGradients(device::CudaStream& stream, const float* in, DType dtype, uint64_t n,
                        std::byte* out);
void CudaBlockSums(device::CudaStream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                   double* sums, uint32_t* finite);
void CudaUpdate(device::CudaStream& stream, const OptimizerScalars& scalars,
                const OptimizerTile& tile);

}  // namespace penstock::kernels
