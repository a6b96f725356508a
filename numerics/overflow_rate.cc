#include "numerics/overflow_rate.h"

#include <fmt/format.h>

#include "numerics/advice.h"
#include "numerics/thresholds.h"

namespace penstock::train {

std::optional<Report> OverflowRateDetector::Step(const StepNumbers& numbers) {
  if (!facts_.dynamic_loss_scale) return {};
  const bool begins = numbers.skipped && !in_streak_;
  in_streak_ = numbers.skipped;
  if (!numbers.skipped) ++applied_;
  if (!begins) return {};
  streaks_.push_back(applied_);
  while (applied_ - streaks_.front() >= facts_.loss_scale_window) streaks_.pop_front();
  const bool first = applied_ < facts_.loss_scale_window;
  if (streaks_.size() <= (first ? kOverflowsInFirstWindow : kOverflowsInWindow)) return {};
  const size_t count = streaks_.size();
  streaks_.clear();
  return Report{.step = numbers.step,
                .kind = ReportKind::kOverflows,
                .pass = Pass::kBackward,
                .value = static_cast<double>(count),
                .message = fmt::format(
                    "step {}: {} streaks of overflows within {} applied steps, where doubling the "
                    "loss scale explains one; {}",
                    numbers.step, count, facts_.loss_scale_window,
                    Advice(ReportKind::kOverflows, {}, {.dynamic_loss_scale = true}))};
}

}  // namespace penstock::train
