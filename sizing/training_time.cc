#include "sizing/training_time.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sizing/time_units.h"

namespace penstock::train {
namespace {

uint64_t StepsOf(double tokens, uint64_t step_tokens) {
  return static_cast<uint64_t>(std::llround(tokens / static_cast<double>(step_tokens)));
}

}  // namespace

TrainingTime TimeBySpeed(const TrainingSize& size) {
  const double flops = (size.recompute ? 8 : 6) * size.parameters * size.tokens;
  const double gpu_seconds = flops / (size.tflops * 1e12);
  return {.steps = size.step_tokens == 0 ? 0 : StepsOf(size.tokens, size.step_tokens),
          .days = gpu_seconds / static_cast<double>(size.gpus) / kDaySeconds,
          .gpu_hours = gpu_seconds / kHourSeconds};
}

TrainingTime TimeBySteps(double tokens, uint64_t step_tokens, double step_s, uint64_t gpus) {
  const uint64_t steps = StepsOf(tokens, step_tokens);
  const double seconds = static_cast<double>(steps) * step_s;
  return {.steps = steps,
          .days = seconds / kDaySeconds,
          .gpu_hours = seconds * static_cast<double>(gpus) / kHourSeconds};
}

std::string TrainingTimeText(const TrainingTime& time) {
  const std::string steps = time.steps == 0 ? "" : fmt::format("{} steps, ", time.steps);
  return fmt::format("{}{:.1f} days, {:.0f} GPU hours", steps, time.days, time.gpu_hours);
}

nlohmann::json TrainingTimeJson(const TrainingTime& time) {
  nlohmann::json object = {{"steps", nullptr}, {"days", time.days}, {"gpu_hours", time.gpu_hours}};
  if (time.steps > 0) object["steps"] = time.steps;
  return object;
}

}  // namespace penstock::train
