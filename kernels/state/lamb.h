// LAMB: Adam's moments, and a step that is scaled for each tensor by its trust ratio.
//
// For every element, fma where written and nowhere else (what a tile's elements are, and what holds
// for every rule: kernels/state/optimizer_tile.h):
//   g = grad * grad_scale
//   m = fma(g, 1 - beta1, m * beta1)
//   v = fma(g * g, 1 - beta2, v * beta2)
//   u = m / (sqrt(v) + eps)
//   u = fma(w, weight_decay, u)                      weight_decay != 0
//   w = fma(u, -step * ratio, w)                     step = lr * sqrt(1 - beta2^t) / (1 - beta1^t)
// and for every tensor, in double:
//   ratio = clamp(norm(w) / norm(u), min_coeff, max_coeff); 1 if one of the norms is zero
// These are the operations of DeepSpeed's FusedLamb (You et al., "Large Batch Optimization for Deep
// Learning", arXiv 1904.00962): the step size is corrected for bias, and not the moments, of which
// the norm of u is. exp_avg is m, exp_avg_sq is v.
//
// So a step takes two passes: one that leaves sums of squares (LambSums) and writes no state, and,
// once the sums of whole tensors are known, the update.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/state/optimizer_tile.h"

namespace penstock::kernels {

struct LambHyperparameters {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  double max_coeff = 10;
  double min_coeff = 0.01;
};

/// The scalars of one step for one parameter group, or for one of its tensors.
struct LambScalars {
  // Rounded to binary32 once.
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float negative_step_size;  ///< -step * ratio
  float decay;               ///< weight_decay; 0: none
  float grad_scale;
  // As they are.
  double step_size;  ///< step size without the ratio
  double max_coeff;
  double min_coeff;
};

/// Sums of squares of some elements of a tensor, from which its trust ratio is made.
struct TrustSums {
  double weights = 0;  ///< sum over the masters, before the update
  double update = 0;   ///< sum over u

  void Add(const TrustSums& behind) {
    weights += behind.weights;
    update += behind.update;
  }
};

/// Returns the scalars of a ratio of 1. `t` counts updates from 1; `grad_scale` is 1 / (loss scale
/// * clip factor). Computed in double.
LambScalars MakeLambScalars(const LambHyperparameters& hyper, double lr, uint64_t t,
                            double grad_scale);
/// Returns the trust ratio of a tensor from the sums of all its elements.
double TrustRatio(const LambScalars& scalars, const TrustSums& of_tensor);
/// Returns the scalars with the ratio of a tensor.
LambScalars WithTrustRatio(LambScalars scalars, double ratio);

/// The first pass. Writes the sums of each kBlockElements elements of the tile, the last of which
/// may be fewer, in the order of BlockSums (kernels/state/block_sums.h), as if the elements that a
/// block lacks were zero. `of_blocks`: as many as there are blocks.
void LambSums(const LambScalars& scalars, const OptimizerTile& tile,
              std::span<TrustSums> of_blocks);
void LambSumsReference(const LambScalars& scalars, const OptimizerTile& tile,
                       std::span<TrustSums> of_blocks);
/// Writes w and u of every element, one after the other in plain C++.
void LambDirectionsReference(const LambScalars& scalars, const OptimizerTile& tile,
                             std::span<float> weights, std::span<float> updates);

/// Updates the tile in place, by scalars that have the ratio of the tensor to which its elements
/// belong. Dispatched at run time to the best instruction set. `of_blocks`: see Update in
/// kernels/state/optimizer.h.
void LambUpdate(const LambScalars& scalars, const OptimizerTile& tile,
                std::span<WeightFigures> of_blocks = {});
/// The same, one element after the other in plain C++: the reference that LambUpdate must equal.
void LambUpdateReference(const LambScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks = {});

}  // namespace penstock::kernels
