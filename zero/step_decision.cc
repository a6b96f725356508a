#include "zero/step_decision.h"

#include <algorithm>
#include <cmath>

namespace penstock::zero {

bool NeedsAllGradients(const Config& config) {
  return config.gradient_clipping > 0 || config.check_grad_overflow;
}

Result<StepDecision> DecideStep(const Config& config, const GradientNorm::Value& gradient) {
  StepDecision decision{.outcome = {.grad_norm = gradient.norm, .skipped = !gradient.finite}};
  if (!gradient.finite && !config.check_grad_overflow) {
    return MakeError(
        ErrorCode::kNumeric,
        "the gradient is not finite (norm {}) and the configuration does not skip such "
        "steps; lower the learning rate, or train in bf16 with "
        "bf16.check_grad_overflow",
        std::fabs(gradient.norm));  // without the sign of a NaN
  }
  if (config.gradient_clipping > 0) {
    // DeepSpeed's clip factor (runtime/zero/stage3.py, unscale_and_clip_grads).
    decision.grad_scale = 1.0 / std::max(1.0, (gradient.norm + 1e-6) / config.gradient_clipping);
  }
  return decision;
}

}  // namespace penstock::zero
