#include "sizing/ramp_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "sizing/time_units.h"

namespace penstock::train {

double StepTimeLine::At(uint64_t samples) const {
  return fixed_s + sample_s * static_cast<double>(samples);
}

namespace {

uint64_t HiddenFrom(const StepTimeLine& line, double drive_s) {
  if (line.At(1) >= drive_s) return 1;
  const double samples = std::ceil((drive_s - line.fixed_s) / line.sample_s);
  return samples < 0x1p64 ? static_cast<uint64_t>(samples) : kMaxCount;
}

double LongestAt(const StepTimeLines& lines, uint64_t samples) {
  double longest = 0;
  for (const StepTimeLine& line : lines) longest = std::max(longest, line.At(samples));
  return longest;
}

}  // namespace

uint64_t HiddenFrom(const StepTimeLines& lines, double drive_s) {
  uint64_t least = kMaxCount;
  for (const StepTimeLine& line : lines) least = std::min(least, HiddenFrom(line, drive_s));
  return least;
}

RampTime TimeOfRamp(const BatchRampup& rampup, uint64_t samples, const StepTimeLines& lines,
                    double drive_s) {
  RampTime time{.hidden_from = drive_s > 0 ? HiddenFrom(lines, drive_s) : 0};
  for (uint64_t consumed = 0; consumed < samples;) {
    BatchRampup::Stretch stretch = rampup.StretchAfter(consumed);
    const uint64_t left = (samples - consumed - 1) / stretch.batch + 1;
    stretch.steps = std::min(stretch.steps, left);
    consumed = SaturatingAdd(consumed, SaturatingMultiply(stretch.steps, stretch.batch));
    const double step_s = LongestAt(lines, stretch.batch);
    const auto steps = static_cast<double>(stretch.steps);
    time.steps += stretch.steps;
    time.seconds += steps * std::max(step_s, drive_s);
    if (step_s >= drive_s) continue;
    time.drive_bound_steps += stretch.steps;
    time.drive_bound_s += steps * (drive_s - step_s);
  }
  return time;
}

std::string RampTimeText(const RampTime& time) {
  std::string text = fmt::format("{} steps, {:.2f} days", time.steps, time.seconds / kDaySeconds);
  if (time.drive_bound_steps == 0) return text;
  text += fmt::format(
      "; {} of them wait for the drive, {:.2f} days in all, as its bytes do not "
      "shrink with the batch",
      time.drive_bound_steps, time.drive_bound_s / kDaySeconds);
  if (time.hidden_from == kMaxCount) return text + ": no batch hides it";
  return text + fmt::format(": a batch of {} hides it", time.hidden_from);
}

nlohmann::json RampTimeJson(const RampTime& time) {
  nlohmann::json object = {{"steps", time.steps},
                           {"seconds", time.seconds},
                           {"drive_bound_steps", time.drive_bound_steps},
                           {"drive_bound_s", time.drive_bound_s},
                           {"hidden_from", time.hidden_from}};
  if (time.hidden_from == kMaxCount) object["hidden_from"] = nullptr;
  return object;
}

}  // namespace penstock::train
