// The loss scale of fp16: a factor on the gradient that keeps it within fp16's range.
//
// Gradients of 16 bits lose what is below 2^-24 and overflow above 65504. So the gradient of the
// loss is multiplied by a scale before backward, and divided by it in the update. A gradient that
// is not finite then means that the scale was too high: the step is skipped, and the scale halved.
//
// Keys, defaults and rules are DeepSpeed's (runtime/fp16/loss_scaler.py, DynamicLossScaler and
// LossScaler). A plain value; the same steps give the same scales.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/config.h"
#include "offload/commit_record.h"

namespace penstock::zero {

class LossScale {
 public:
  /// The scale of a new training.
  explicit LossScale(const config::LossScaling& rules);
  /// Resumes from the state in a commit. The rules may have changed: a static scale is theirs, and
  /// a dynamic one resumes from the old scale, or from their minimum if that is higher.
  LossScale(const config::LossScaling& rules, const offload::LossScaleState& state)
      : rules_(rules), state_(state) {
    state_.scale = dynamic() ? std::max(state.scale, rules.min_loss_scale) : rules.loss_scale;
  }

  /// Returns the scale of the next step.
  double value() const { return state_.scale; }
  const offload::LossScaleState& state() const { return state_; }

  /// Accounts for a step; `overflow`: its gradient was not finite, and the step was skipped. After
  /// an overflow, first `hysteresis` - 1 steps are let off, and then the scale is halved, down to
  /// min_loss_scale. After every `loss_scale_window` steps without one it is doubled.
  void Count(bool overflow);
  /// Whether the last step overflowed with a scale that cannot be lowered. The training ends then.
  bool exhausted() const { return exhausted_; }
  /// Returns after how many steps that overflow, counted from the next one, the scale is exhausted;
  /// kMaxCount for a static scale, which never is.
  uint64_t OverflowsToTheEnd() const;

 private:
  bool dynamic() const { return rules_.loss_scale == 0; }
  void Overflowed();

  config::LossScaling rules_;
  offload::LossScaleState state_;
  bool exhausted_ = false;
};

}  // namespace penstock::zero
