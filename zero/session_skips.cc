// The session: steps that do not count, skipped or passed over, and when there were too many.
#include <algorithm>

#include "zero/session.h"

namespace penstock::zero {

Status Session::CheckSkips() const {
  if (losses_not_finite_ >= kMostLossesNotFinite) {
    return MakeError(
        ErrorCode::kNumeric, "step {}: the losses of {} steps in a row are not finite: {}",
        state_.step, losses_not_finite_,
        loss_scale_ ? "the forward overflows fp16, or the weights are destroyed, which "
                      "no loss scale mends; train in bf16 or in fp32"
                    : "the forward overflows, or the weights are destroyed, which "
                      "skipping steps does not mend");
  }
  if (loss_scale_ && loss_scale_->exhausted()) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the gradient overflows fp16, and the loss scale is at its minimum "
                     "of {} already (fp16.min_loss_scale); {} steps in a row were skipped",
                     state_.step, loss_scale_->value(), state_.skipped_in_a_row);
  }
  if (zero_gradients_ >= kMaxZeroGradients) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the whole gradient of {} steps in a row is zero in fp16 at loss "
                     "scale {}: it underflows, and nothing is learned",
                     state_.step, zero_gradients_, loss_scale_->value());
  }
  if (state_.skipped_in_a_row < kMaxSkippedInARow) return {};
  return MakeError(
      ErrorCode::kNumeric,
      "step {}: {} steps in a row had losses or gradients that are not finite and were "
      "skipped",
      state_.step, state_.skipped_in_a_row);
}

uint64_t Session::SkipsToTheEnd() const {
  if (!CheckSkips().ok()) return 0;
  uint64_t skips = kMaxSkippedInARow - state_.skipped_in_a_row;
  if (losses_not_finite_ > 0) skips = std::min(skips, kMostLossesNotFinite - losses_not_finite_);
  if (loss_scale_) skips = std::min(skips, loss_scale_->OverflowsToTheEnd());
  return skips;
}

Status Session::PassOver(uint64_t last) {
  PENSTOCK_TRY(CheckFilled());
  if (open_ || last <= state_.step) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "steps up to {} were passed over {} step {}; pass over steps before they begin", last,
        open_ ? "within" : "after", state_.step + (open_ ? 1 : 0));
  }
  state_.step = last;
  repeatable_ = false;
  return {};
}

}  // namespace penstock::zero
