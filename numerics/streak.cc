#include "numerics/streak.h"

#include <fmt/format.h>

#include "numerics/advice.h"
#include "numerics/non_finite.h"
#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

std::string Forecast(const StepNumbers& numbers) {
  if (!numbers.steps_to_stop) return "";
  const uint64_t left = *numbers.steps_to_stop;
  const double seconds = static_cast<double>(left) * numbers.median_step_s;
  return fmt::format("; {} step{} to the stop (step {}{})", left, left == 1 ? "" : "s",
                     numbers.step + left, seconds > 0 ? ", " + InAboutText(seconds) : "");
}

}  // namespace

bool StreakRule::Step(uint64_t step, uint64_t skipped,
                      const std::optional<uint64_t>& steps_to_stop) {
  if (skipped_ == 0 || skipped == 0) {
    began_ = step;
    said_ = false;
  }
  skipped_ = skipped;
  if (said_ || skipped_ < kStreakSteps || steps_to_stop == 0) return false;
  said_ = !dynamic_ || (steps_to_stop && *steps_to_stop <= kSkipsLeftToReport);
  return said_;
}

std::optional<Report> StreakDetector::Step(const StepNumbers& numbers) {
  const uint64_t skipped = numbers.skipped ? rule_.skipped() + 1 : 0;
  if (!rule_.Step(numbers.step, skipped, numbers.steps_to_stop)) return {};
  const NonFinitePlace place = FindNonFinite(facts_, numbers);
  Report report{.step = numbers.step,
                .kind = ReportKind::kStreak,
                .tensor = place.tensor,
                .layer = place.layer,
                .pass = place.pass};
  if (numbers.steps_to_stop) report.value = static_cast<double>(*numbers.steps_to_stop);
  report.message = fmt::format(
      "step {}: {} steps in a row were skipped{}{}; {}", numbers.step, skipped,
      place.tensor ? fmt::format(", the last for {} in {}", *place.tensor, ToString(place.pass))
                   : "",
      Forecast(numbers),
      Advice(ReportKind::kStreak, place.pass,
             {.dtype = facts_.dtype, .dynamic_loss_scale = facts_.dynamic_loss_scale}));
  return report;
}

}  // namespace penstock::train
