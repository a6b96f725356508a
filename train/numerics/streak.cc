#include "train/numerics/streak.h"

#include <fmt/format.h>

#include "train/numerics/advice.h"
#include "train/numerics/non_finite.h"
#include "train/numerics/text.h"
#include "train/numerics/thresholds.h"

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

/// Each skipped step is one step nearer to the stop.
bool TellsOfStreak(bool dynamic_loss_scale, uint64_t skipped,
                   const std::optional<uint64_t>& steps_to_stop) {
  if (!dynamic_loss_scale || !steps_to_stop) return skipped == kStreakSteps;
  return skipped == kStreakSteps ? *steps_to_stop <= kSkipsLeftToReport
                                 : skipped > kStreakSteps && *steps_to_stop == kSkipsLeftToReport;
}

std::optional<Report> StreakDetector::Step(const StepNumbers& numbers) {
  skipped_ = numbers.skipped ? skipped_ + 1 : 0;
  if (!TellsOfStreak(facts_.dynamic_loss_scale, skipped_, numbers.steps_to_stop)) return {};
  const NonFinitePlace place = FindNonFinite(facts_, numbers);
  Report report{.step = numbers.step,
                .kind = ReportKind::kStreak,
                .tensor = place.tensor,
                .layer = place.layer,
                .pass = place.pass};
  if (numbers.steps_to_stop) report.value = static_cast<double>(*numbers.steps_to_stop);
  report.message = fmt::format(
      "step {}: {} steps in a row were skipped{}{}; {}", numbers.step, skipped_,
      place.tensor ? fmt::format(", the last for {} in {}", *place.tensor, ToString(place.pass))
                   : "",
      Forecast(numbers),
      Advice(ReportKind::kStreak, place.pass,
             {.dtype = facts_.dtype, .dynamic_loss_scale = facts_.dynamic_loss_scale}));
  return report;
}

}  // namespace penstock::train
