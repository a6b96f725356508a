#include "zero/session/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace penstock::zero {

LossScale::LossScale(const config::LossScaling& rules)
    : rules_(rules),
      state_{.scale = rules.loss_scale > 0
                          ? rules.loss_scale
                          : std::ldexp(1.0, static_cast<int>(rules.initial_scale_power)),
             .steps_without_overflow = 0,
             .hysteresis = static_cast<uint32_t>(rules.hysteresis)} {}

void LossScale::Count(bool overflow) {
  if (!dynamic()) return;
  if (overflow) {
    Overflowed();
    return;
  }
  const auto full = static_cast<uint32_t>(rules_.hysteresis);
  state_.steps_without_overflow += 1;
  if (rules_.consecutive_hysteresis) state_.hysteresis = full;
  if (state_.steps_without_overflow % static_cast<uint64_t>(rules_.loss_scale_window) != 0) return;
  state_.hysteresis = full;
  state_.scale *= 2;
}

void LossScale::Overflowed() {
  state_.steps_without_overflow = 0;
  if (state_.hysteresis > 1) {
    state_.hysteresis -= 1;
    return;
  }
  exhausted_ = state_.scale == rules_.min_loss_scale;
  state_.scale = std::max(state_.scale / 2, rules_.min_loss_scale);
}

uint64_t LossScale::OverflowsToTheEnd() const {
  if (!dynamic()) return kMaxCount;
  const double halvings = std::ceil(std::log2(state_.scale / rules_.min_loss_scale));
  return state_.hysteresis - 1 + static_cast<uint64_t>(halvings) + 1;
}

}  // namespace penstock::zero
