// Decides what a step does with its gradient: skip, clip, or end the run. The same in every
// placement.
#pragma once

#include "base/result.h"
#include "config/config.h"
#include "zero/gradient_norm.h"

namespace penstock::zero {

/// What the configuration, or a caller, says of steps.
struct StepRules {
  double gradient_clipping = 0;  ///< the largest norm; 0: any
  bool skips_overflow = false;   ///< a step whose gradient is not finite is skipped
};

struct StepDecision {
  bool skip = false;      ///< nothing is updated
  double grad_norm = 0;   ///< without the loss scale
  double grad_scale = 1;  ///< factor on the gradient: 1 / max(1, (norm + 1e-6) / clip) / loss scale
};

/// When the update of a tile may begin: once all gradients of the step are there, or once its own
/// is.
enum class UpdateStart { kStepEnd, kGradient };

/// Updates begin with their own gradients, unless an update needs all gradients of the step
/// (clipping, the check for overflow, trust ratios), or overlap is off: then updates come when
/// everything else of the step is done.
UpdateStart StartOfUpdates(const config::Config& config);

/// Decides. `gradient` is that of the loss times `loss_scale`. A step whose forward is not finite
/// is skipped. Errors: kNumeric for a gradient that is not finite if such steps are not skipped.
Result<StepDecision> DecideStep(const StepRules& rules, const GradientNorm::Value& gradient,
                                double loss_scale, bool forward_is_finite);

}  // namespace penstock::zero
