#include "zero/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace penstock::zero {
namespace {

using config::SchedulerConfig;
using config::SchedulerType;
using config::WarmupType;

int64_t WarmupSteps(const SchedulerConfig& scheduler) {
  return std::max<int64_t>(2, scheduler.warmup_num_steps);
}

/// How far the warm-up has come, from 0 to 1, at an iteration in [0, warm-up steps).
double WarmupGamma(const SchedulerConfig& scheduler, int64_t iteration) {
  const auto steps = static_cast<double>(WarmupSteps(scheduler));
  if (scheduler.warmup_type == WarmupType::kLinear) return static_cast<double>(iteration) / steps;
  const double inverse_log = 1.0 / std::log(steps);
  return inverse_log * std::log(static_cast<double>(iteration + 1));
}

/// Steps that are left for the decay, at least 1.
double DecaySteps(const SchedulerConfig& scheduler) {
  return static_cast<double>(
      std::max<int64_t>(1, scheduler.total_num_steps - WarmupSteps(scheduler)));
}

double WarmupLr(const SchedulerConfig& scheduler, double optimizer_lr, int64_t iteration) {
  const double min_lr = scheduler.warmup_min_lr;
  const double delta = scheduler.warmup_max_lr.value_or(optimizer_lr) - min_lr;
  if (iteration < 0) return min_lr;
  double gamma = 1.0;
  if (iteration < WarmupSteps(scheduler)) {
    gamma = WarmupGamma(scheduler, iteration);
  } else if (scheduler.type == SchedulerType::kWarmupDecayLr) {
    gamma = std::max(
        0.0, static_cast<double>(scheduler.total_num_steps - iteration) / DecaySteps(scheduler));
  }
  return min_lr + delta * gamma;
}

double CosineRatio(const SchedulerConfig& scheduler, int64_t iteration) {
  if (iteration < 0) return 0;
  const int64_t warmup = WarmupSteps(scheduler);
  if (iteration < warmup) {
    const double min_ratio = scheduler.warmup_min_ratio;
    return min_ratio + WarmupGamma(scheduler, iteration) * (1.0 - min_ratio);
  }
  const double progress =
      std::min(1.0, static_cast<double>(iteration - warmup + 1) / DecaySteps(scheduler));
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * cosine);
}

}  // namespace

double LearningRate(const SchedulerConfig& scheduler, double optimizer_lr, uint64_t step) {
  PENSTOCK_CHECK(step >= 1);
  const int64_t iteration = static_cast<int64_t>(step) - 2;
  switch (scheduler.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLr:
    case SchedulerType::kWarmupDecayLr:
      return WarmupLr(scheduler, optimizer_lr, iteration);
    case SchedulerType::kWarmupCosineLr:
      return optimizer_lr * CosineRatio(scheduler, iteration);
  }
  return optimizer_lr;
}

}  // namespace penstock::zero
