// Adding fp32 tensors on the CUDA device. It enqueues and returns.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace penstock::kernels {

/// sums[i] += terms[i]
void CudaAddFloats(device::CudaStream& stream, uint64_t n, const float* terms, float* sums);

}  // namespace penstock::kernels
