// The fused Adam/AdamW step: unscale, clip, moments, weight and its 16-bit copy in one pass.
//
// For every element, in IEEE binary32, round to nearest even, fma where written and nowhere else
// (formulas of DeepSpeed's CPU Adam, which agree with PyTorch's; eps is added after
// bias correction):
//   g = grad * grad_scale
//   g = fma(w, weight_decay, g)                      L2: adam_w_mode false, weight_decay != 0
//   m = fma(g, 1 - beta1, m * beta1)
//   v = fma(g * g, 1 - beta2, v * beta2)
//   d = m / fma(sqrt(v), rsqrt_bias2, eps)           rsqrt_bias2 = 1 / sqrt(1 - beta2^t)
//   w = fma(w, -lr * weight_decay, w)                AdamW: adam_w_mode true, weight_decay != 0
//   w = fma(d, -lr / (1 - beta1^t), w)
// Every instruction set, and the scalar reference, give the same bits; only which bits a NaN has is
// left open. Denormals are kept, provided that the calling thread keeps them (base/denormals.h).
//
// Threads: the functions keep no state; any number may run at once, on tiles that do not overlap.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

struct AdamHyperparameters {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;
  bool bias_correction = true;
};

/// The scalars of one step for one parameter group, rounded to binary32 once.
struct AdamScalars {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float rsqrt_bias2;
  float negative_step_size;  ///< -lr / (1 - beta1^t)
  float decay;               ///< AdamW: -lr * weight_decay; L2 form: weight_decay; 0: none
  float grad_scale;
  bool adam_w_mode;
};

/// `t` counts updates from 1; `grad_scale` is 1 / (loss scale * clip factor). Computed in double.
AdamScalars MakeAdamScalars(const AdamHyperparameters& hyper, double lr, uint64_t t,
                            double grad_scale);

/// One tile, or any part of one. All spans have the same number of elements; no alignment is
/// needed.
/// bf16 training: `weight_hi` and `weight_lo` are the split master; `weight` is empty.
/// fp32 training: `weight` is the master; the other two are empty.
struct AdamTile {
  std::span<BFloat16> weight_hi;
  std::span<int16_t> weight_lo;
  std::span<float> weight;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  /// Elements of `gradient_dtype` (kFloat32 or kBFloat16), as many as the others have.
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kFloat32;
};

/// The number of elements, after checking that the spans agree and form one of the two layouts.
uint64_t ElementCount(const AdamTile& tile);
/// Elements first … first + count - 1 of the tile, for a caller that goes through it in chunks.
AdamTile Part(const AdamTile& tile, uint64_t first, uint64_t count);

/// Elements that the optimizer passes at once, so that they are hashed and updated in the cache: at
/// 14 bytes of states and gradient each, two such chunks fit an L2 cache of 512 KiB.
inline constexpr uint64_t kChunkElements = 4 * kBlockElements;

/// Updates the tile in place. Dispatched at run time to the best instruction set.
void AdamUpdate(const AdamScalars& scalars, const AdamTile& tile);
/// The same, one element after the other in plain C++: the reference that AdamUpdate must equal.
void AdamUpdateReference(const AdamScalars& scalars, const AdamTile& tile);

/// The instruction sets this build can dispatch to on this machine, best first ("AVX3", "AVX2", …).
/// For tests: `AdamUpdateOn(target, …)` forces one of them.
std::span<const char* const> AdamTargets();
void AdamUpdateOn(const char* target, const AdamScalars& scalars, const AdamTile& tile);

}  // namespace penstock::kernels
