// CUDA kernels on rows of scores: the loss of the head, and the softmax of fp32 attention. They
// enqueue and return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// Logits that a thread reads at once; columns are rounded up to a multiple of it.
inline constexpr uint64_t kLogitPack = 8;

/// Logits and gradient begin at multiples of 32 bytes. What lies behind a row's vocabulary counts
/// for nothing; in the gradient it becomes zero, up to the next row.
struct CudaCrossEntropy {
  DType dtype;  ///< dtype of the gradient
  uint64_t rows;
  uint64_t vocabulary;
  uint64_t stride;  ///< elements from a row to the next, of both; a multiple of kLogitPack
  const float* logits;
  const int32_t* targets;
  float gradient_scale;
  double* losses;       ///< [rows]: -log softmax(logits)[target]
  std::byte* d_logits;  ///< null: only the losses; may be the logits
};
void CudaCrossEntropyRows(device::CudaStream& stream, const CudaCrossEntropy& rows);
/// *sum += Σ losses[r], in order.
void CudaAddLosses(device::CudaStream& stream, uint64_t rows, const double* losses, double* sum);

/// `scores`: fp32 [matrices, n, n]; row i becomes softmax over its first i + 1 elements, zero
/// behind them.
void CudaCausalSoftmax(device::CudaStream& stream, uint64_t matrices, uint64_t n, float* scores);
/// d_scores = scale p (d_p − Σ p d_p) over the first i + 1 elements, zero behind; in place of d_p.
void CudaCausalSoftmaxBackward(device::CudaStream& stream, uint64_t matrices, uint64_t n,
                               float scale, const float* p, float* d_p);

}  // namespace penstock::kernels
