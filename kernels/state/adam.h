// Adam and AdamW: unscale, clip, moments, weight and its 16-bit copy in one pass.
//
// For every element, fma where written and nowhere else (what a tile's elements are, and what holds
// for every rule: kernels/state/optimizer_tile.h):
//   g = grad * grad_scale
//   g = fma(w, weight_decay, g)                      L2: adam_w_mode false, weight_decay != 0
//   m = fma(g, 1 - beta1, m * beta1)
//   v = fma(g * g, 1 - beta2, v * beta2)
//   d = m / fma(sqrt(v), rsqrt_bias2, eps)           rsqrt_bias2 = 1 / sqrt(1 - beta2^t)
//   w = fma(w, -lr * weight_decay, w)                AdamW: adam_w_mode true, weight_decay != 0
//   w = fma(d, -lr / (1 - beta1^t), w)
// These are torch.optim.Adam and torch.optim.AdamW (Kingma and Ba, arXiv 1412.6980; Loshchilov and
// Hutter, arXiv 1711.05101), eps added after bias correction as there, in the order of operations
// of DeepSpeed's CPU Adam. exp_avg is m, exp_avg_sq is v.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/state/optimizer_tile.h"

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

/// Updates the tile in place. Dispatched at run time to the best instruction set. `of_blocks`: see
/// Update in kernels/state/optimizer.h.
void AdamUpdate(const AdamScalars& scalars, const OptimizerTile& tile,
                std::span<WeightFigures> of_blocks = {});
/// The same, one element after the other in plain C++: the reference that AdamUpdate must equal.
void AdamUpdateReference(const AdamScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks = {});

}  // namespace penstock::kernels
