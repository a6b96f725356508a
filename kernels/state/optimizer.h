// The common interface of the optimizers: which moments a rule has, its scalars of a step, its
// update.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/state/adagrad.h"
#include "kernels/state/adam.h"
#include "kernels/state/lamb.h"
#include "kernels/state/lion.h"

namespace penstock::kernels {

/// The hyperparameters of a rule; the type says which rule.
using OptimizerHyperparameters = std::variant<AdamHyperparameters, LionHyperparameters,
                                              AdagradHyperparameters, LambHyperparameters>;
/// A rule's scalars of one step for one parameter group.
using OptimizerScalars = std::variant<AdamScalars, LionScalars, AdagradScalars, LambScalars>;

/// The moments that a rule keeps for every element.
struct RuleMoments {
  bool exp_avg;
  bool exp_avg_sq;
};
RuleMoments MomentsOf(const OptimizerHyperparameters& hyper);

double WeightDecay(const OptimizerHyperparameters& hyper);
/// Returns the same hyperparameters without weight decay.
OptimizerHyperparameters WithoutDecay(OptimizerHyperparameters hyper);

/// `t` counts updates from 1; `grad_scale` is 1 / (loss scale * clip factor). Computed in double.
OptimizerScalars MakeScalars(const OptimizerHyperparameters& hyper, double lr, uint64_t t,
                             double grad_scale);

/// Whether the rule scales the step of each tensor by a trust ratio. Its step takes two passes over
/// all tiles, SumForTrust and Update, and between them the sums of whole tensors.
bool HasTrustRatio(const OptimizerHyperparameters& hyper);
/// The first pass: LambSums. Precondition: the rule has a trust ratio.
void SumForTrust(const OptimizerScalars& scalars, const OptimizerTile& tile,
                 std::span<TrustSums> of_blocks);
/// Returns the scalars with the trust ratio of a tensor, from the sums of all its elements.
/// Precondition: the rule has one.
OptimizerScalars WithTrust(const OptimizerScalars& scalars, const TrustSums& of_tensor);

/// Updates the tile in place by the rule to which the scalars belong: AdamUpdate, LionUpdate,
/// AdagradUpdate or LambUpdate.
///
/// Writes the figures of each kBlockElements elements of the tile, the last of which may be fewer,
/// unless `of_blocks` is empty. They are made while the weights are in registers. Their sums are
/// within 1e-5 of what they should be, relatively, as squares are added in fp32 (so that they are
/// infinite or zero where a square is beyond its range: weights above 1.8e19, updates below 1e-23);
/// their last bits depend on the instruction set, but not on how tiles are cut if parts begin as
/// TensorParts has them. The largest magnitude is exact.
void Update(const OptimizerScalars& scalars, const OptimizerTile& tile,
            std::span<WeightFigures> of_blocks = {});

}  // namespace penstock::kernels
