// GELU and its gradient on the GPU, if they are not part of a product. The functions enqueue and
// return. Pointers are device memory, aligned to an element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// GELU over n elements, and d_x = d_out * gelu'(x); d_x may be d_out.
void CudaGeluForward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                     std::byte* out);
void CudaGeluBackward(device::CudaStream& stream, DType dtype, uint64_t n, const std::byte* x,
                      const std::byte* d_out, std::byte* d_x);

}  // namespace penstock::kernels
