// Gradients on the GPU; StateOperators says what is computed. The functions enqueue and return.
// Pointers are device memory, aligned to an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/state/state_operators.h"

namespace penstock::kernels {

void CudaRoundGradients(device::CudaStream& stream, const float* in, DType dtype, uint64_t n,
                        std::byte* out);
void CudaAddInOrder(device::CudaStream& stream, float* sums, uint64_t n, const ElementRows& parts);
void CudaAddGradient(device::CudaStream& stream, const std::byte* values, DType dtype, uint64_t n,
                     bool first, float* sums);
void CudaBlockSums(device::CudaStream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                   double* sums, uint32_t* finite);
void CudaGradientFigures(device::CudaStream& stream, const std::byte* gradient, DType dtype,
                         uint64_t n, std::span<const GradientEnd> ends,
                         const DeviceBlockFigures& figures);
void CudaAddZeroCounts(device::CudaStream& stream, const float* values, uint64_t n,
                       ZeroCounts* counts);

}  // namespace penstock::kernels
