// Sums over rows, column by column: the gradients of biases and of norm weights.
//
// Each part of the rows (RowParts) is summed for itself, then the parts are added up in order, so
// that the result depends on the shapes alone. `partial` is scratch for parts · columns sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/model/cuda_plan.h"

namespace penstock::kernels {

/// sums[c] += Σ_r d_out[r, c]
void CudaAddBiasGradient(device::CudaStream& stream, DType dtype, uint64_t rows, uint64_t columns,
                         const std::byte* d_out, float* partial, float* sums);

/// sums[c] += Σ_r d_out[r, c] (x[r, c] - mean[r]) rstd[r]
void CudaAddNormWeightGradient(device::CudaStream& stream, DType dtype, uint64_t rows,
                               uint64_t columns, const std::byte* d_out, const std::byte* x,
                               const float* mean, const float* rstd, float* partial, float* sums);

}  // namespace penstock::kernels
