// What tests ask of the emulated cuBLASLt.
#pragma once

#include <cublasLt.h>

namespace penstock::emulated_cuda {

/// An answer of the heuristic: it has succeeded, and found no algorithm.
inline constexpr auto kNoneFound = static_cast<cublasStatus_t>(-1);

/// What the heuristic answers from now on to a product with GELU, or its gradient, in the epilogue;
/// CUBLAS_STATUS_SUCCESS: that there is an algorithm.
void AnswerToGelu(cublasStatus_t status);
void AnswerToGradientOfGelu(cublasStatus_t status);

}  // namespace penstock::emulated_cuda
