// What a step does with its gradient: skip, clip, or end the run. The same in every placement.
#pragma once

#include "base/result.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/gradient_norm.h"

namespace penstock::zero {

struct StepDecision {
  StepOutcome outcome;
  double grad_scale =
      1;  ///< what updates multiply the gradient with: 1 / max(1, (norm + 1e-6) / clip)
};

/// Whether the update of a tile needs to know all gradients of the step, and not its own alone.
bool NeedsAllGradients(const Config& config);

/// Errors: kNumeric for a gradient that is not finite where the configuration does not check for
/// it.
Result<StepDecision> DecideStep(const Config& config, const GradientNorm::Value& gradient);

}  // namespace penstock::zero
