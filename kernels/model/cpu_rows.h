// The CPU operators' loops other than matrix products, on vectors (Highway, best instruction set at
// run time). Each function is single-threaded and works on the rows or elements it is given; the
// operators cut the work between threads.
//
// `dtype` says what the untyped pointers point to; arithmetic is in fp32, and results are rounded
// to nearest even. No pointer needs alignment. Sums are taken by
// vector lanes and then over the lanes, so that their order depends on the instruction set and the
// length alone. NaN and infinity in an input are never lost.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace penstock::kernels {

/// out[i] = a[i] + b[i]
void AddElements(DType dtype, const void* a, const void* b, void* out, uint64_t n);
/// sums[i] += in[i]
void AddToFloats(DType dtype, const void* in, float* sums, uint64_t n);

/// GELU, tanh form, written as x · sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same
/// function without the cancellation of 1 + tanh(u) for negative x.
void GeluForwardElements(DType dtype, const void* x, void* out, uint64_t n);
/// d_x may be d_out.
void GeluBackwardElements(DType dtype, const void* x, const void* d_out, void* d_x, uint64_t n);

/// The operands of a layer norm over rows of `width`; all rows of the operator.
struct LayerNormRows {
  DType dtype = DType::kFloat32;
  uint64_t width = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
};

/// Rows [begin, end): the mean, then the mean square deviation from it, then the norm. Returns the
/// largest magnitude of x; infinite if an element is not finite.
float LayerNormForwardRows(const LayerNormRows& norm, const void* bias, float eps, uint64_t begin,
                           uint64_t end, void* out, float* mean, float* rstd);

struct LayerNormGradients {
  const void* d_out = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  bool add_to_d_x = false;
  void* d_x = nullptr;
};

/// Rows [begin, end); adds what they contribute to d_weight and d_bias (fp32, [width]), row by row.
void LayerNormBackwardRows(const LayerNormRows& norm, const LayerNormGradients& gradients,
                           uint64_t begin, uint64_t end, float* d_weight, float* d_bias);

/// A strip of causal scores: row r attends to the first `first_visible + r` of `columns` keys.
struct CausalStrip {
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t first_visible = 0;
  uint64_t stride = 0;  ///< elements between rows, of every matrix of the strip
  float scale = 1;      ///< scale of the scores
};

/// probabilities = softmax(scale · scores) over the visible keys, 0 elsewhere; may be `scores`
/// itself when fp32. `scores` is overwritten.
void CausalSoftmaxRows(const CausalStrip& strip, float* scores, DType dtype, void* probabilities);
/// The same, and d_scores = scale · p · (d_p − Σ p d_p), where d_p is the gradient at the
/// probabilities; d_scores may be d_p itself when fp32. Both results are of `dtype`.
void CausalSoftmaxBackwardRows(const CausalStrip& strip, float* scores, const float* d_p,
                               DType dtype, void* probabilities, void* d_scores);

/// Returns −log softmax(logits)[target]. Where d_logits is not null it gets
/// gradient_scale · (softmax(logits) − onehot(target)), of `dtype`; it may be `logits` when fp32.
/// `logits` is overwritten. Precondition: target < n.
double CrossEntropyRow(float* logits, uint64_t n, uint64_t target, float gradient_scale,
                       DType dtype, void* d_logits);

}  // namespace penstock::kernels
