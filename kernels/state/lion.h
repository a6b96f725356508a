// Lion: unscale, clip, moment, weight and its 16-bit copy in one pass.
//
// For every element, fma where written and nowhere else (what a tile's elements are, and what holds
// for every rule: kernels/state/optimizer_tile.h):
//   g = grad * grad_scale
//   c = fma(g, 1 - beta1, m * beta1)
//   m = fma(g, 1 - beta2, m * beta2)
//   w = fma(w, -lr * weight_decay, w)                weight_decay != 0
//   w = fma(sign(c), -lr, w)                         sign(c): 1 or -1; c itself where it is 0 or
//   NaN
// Chen et al., "Symbolic Discovery of Optimization Algorithms" (arXiv 2302.06675), algorithm 2.
// exp_avg is m; there is no exp_avg_sq.
#pragma once

#include "kernels/state/optimizer_tile.h"

namespace penstock::kernels {

struct LionHyperparameters {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

/// The scalars of one step for one parameter group, rounded to binary32 once.
struct LionScalars {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float negative_step_size;  ///< -lr
  float decay;               ///< -lr * weight_decay; 0: none
  float grad_scale;
};

/// `grad_scale` is 1 / (loss scale * clip factor). Computed in double.
LionScalars MakeLionScalars(const LionHyperparameters& hyper, double lr, double grad_scale);

/// Updates the tile in place. Dispatched at run time to the best instruction set. `of_blocks`: see
/// Update in kernels/state/optimizer.h.
void LionUpdate(const LionScalars& scalars, const OptimizerTile& tile,
                std::span<WeightFigures> of_blocks = {});
/// The same, one element after the other in plain C++: the reference that LionUpdate must equal.
void LionUpdateReference(const LionScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks = {});

}  // namespace penstock::kernels
