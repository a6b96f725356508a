#include "train/loop/skipped_step_search.h"

namespace penstock::train {

Status SkippedStepSearch::AfterStep(DoneStep& step) {
  StepNumbers& numbers = step.numbers;
  const bool due = rule_.Due({.step = numbers.step,
                              .forward_finite = numbers.forward_finite,
                              .skipped_in_a_row = step.skipped_in_a_row,
                              .steps_to_stop = numbers.steps_to_stop.value_or(0)});
  if (due && numbers.step != last_step_) {
    PENSTOCK_ASSIGN(std::optional<FirstNonFinite> first, search_(numbers));
    rule_.Found(std::move(first));
  }
  numbers.first = rule_.first();
  return {};
}

}  // namespace penstock::train
