// Rounding fp32 tensors on the CUDA device. It enqueues and returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// out[i] = in[i], to nearest, ties to even. `in` begins at a multiple of 32 bytes.
void CudaRoundFloats(device::CudaStream& stream, DType dtype, uint64_t n, const float* in,
                     std::byte* out);

}  // namespace penstock::kernels
