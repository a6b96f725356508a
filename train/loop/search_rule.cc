#include "train/loop/search_rule.h"

#include "numerics/thresholds.h"

namespace penstock::train {

bool SearchRule::Due(const EndedStep& step) {
  const bool told = streak_.Step(step.step, step.skipped_in_a_row, step.steps_to_stop);
  const bool skipped = step.skipped_in_a_row > 0;
  if (!skipped) first_.reset();
  const Pass failed = step.forward_finite ? Pass::kBackward : Pass::kForward;
  if (first_ && first_->pass != failed) {
    // The earlier finding is not the cause of this failure.
    first_.reset();
    searched_.reset();
  }
  const bool reported =
      !step.forward_finite || !dynamic_ || told || step.skipped_in_a_row >= kOverflowsToReport;
  const bool lately = searched_ && step.step < *searched_ + kQuietSteps;
  if (!skipped || (!every_ && (!reported || lately))) return false;
  searched_ = step.step;
  return true;
}

}  // namespace penstock::train
