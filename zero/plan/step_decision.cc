#include "zero/plan/step_decision.h"

#include <algorithm>
#include <cmath>

#include "zero/states/trust_sums.h"

namespace penstock::zero {

UpdateStart StartOfUpdates(const config::Config& config) {
  const bool needs_all =
      config.gradient_clipping > 0 || config.check_grad_overflow || TakesTwoPasses(config);
  return config.overlap && !needs_all ? UpdateStart::kGradient : UpdateStart::kStepEnd;
}

Result<StepDecision> DecideStep(const StepRules& rules, const GradientNorm::Value& gradient,
                                double loss_scale, bool forward_is_finite) {
  StepDecision decision{.skip = !gradient.finite || !forward_is_finite,
                        .grad_norm = gradient.norm / loss_scale};
  if (!gradient.finite && !rules.skips_overflow) {
    return MakeError(
        ErrorCode::kNumeric,
        "the gradient is not finite (norm {}) and the configuration does not skip such "
        "steps, as bf16.check_grad_overflow does",
        std::fabs(gradient.norm));  // without the sign of a NaN
  }
  if (rules.gradient_clipping > 0) {
    // DeepSpeed's clip factor (runtime/zero/stage3.py, unscale_and_clip_grads).
    decision.grad_scale =
        1.0 / std::max(1.0, (decision.grad_norm + 1e-6) / rules.gradient_clipping);
  }
  decision.grad_scale /= loss_scale;
  return decision;
}

}  // namespace penstock::zero
