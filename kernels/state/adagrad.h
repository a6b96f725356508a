// Adagrad: unscale, clip, sum of squares, weight and its 16-bit copy in one pass.
//
// For every element, fma where written and nowhere else (what a tile's elements are, and what holds
// for every rule: kernels/state/optimizer_tile.h):
//   g = grad * grad_scale
//   g = fma(w, weight_decay, g)                      weight_decay != 0
//   sum = fma(g, g, sum)
//   w = fma(g / (sqrt(sum) + eps), -lr / (1 + (t - 1) * lr_decay), w)
// This is torch.optim.Adagrad (Duchi et al., JMLR 12, 2011). exp_avg_sq is the sum, whose first
// value (PyTorch's initial_accumulator_value) the caller fills in; there is no exp_avg.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/state/optimizer_tile.h"

namespace penstock::kernels {

struct AdagradHyperparameters {
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
};

/// The scalars of one step for one parameter group, rounded to binary32 once.
struct AdagradScalars {
  float eps;
  float negative_step_size;  ///< -lr / (1 + (t - 1) * lr_decay)
  float decay;               ///< weight_decay
  float grad_scale;
};

/// `t` counts updates from 1; `grad_scale` is 1 / (loss scale * clip factor). Computed in double.
AdagradScalars MakeAdagradScalars(const AdagradHyperparameters& hyper, double lr, uint64_t t,
                                  double grad_scale);

/// Updates the tile in place. Dispatched at run time to the best instruction set. `of_blocks`: see
/// Update in kernels/state/optimizer.h.
void AdagradUpdate(const AdagradScalars& scalars, const OptimizerTile& tile,
                   std::span<WeightFigures> of_blocks = {});
/// The same, one element after the other in plain C++: the reference that AdagradUpdate must equal.
void AdagradUpdateReference(const AdagradScalars& scalars, const OptimizerTile& tile,
                            std::span<WeightFigures> of_blocks = {});

}  // namespace penstock::kernels
