// What tests ask of the emulated cuBLASLt.
#pragma once

#include <cublasLt.h>

namespace penstock::emulated_cuda {

/// What the heuristic answers to a product with GELU in its epilogue from now on;
/// CUBLAS_STATUS_SUCCESS: that there is an algorithm.
void AnswerToGelu(cublasStatus_t status);

}  // namespace penstock::emulated_cuda
