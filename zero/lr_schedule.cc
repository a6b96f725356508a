#include "zero/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace penstock::zero {
namespace {

using config::LrRangeTest;
using config::OneCycle;
using config::SchedulerConfig;
using config::SchedulerType;
using config::WarmupType;

/// DeepSpeed's value, regardless of the optimizer's.
constexpr double kCycledBeta2 = 0.99;

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

/// The lengths of the cycle, in steps.
struct CycleLengths {
  explicit CycleLengths(const OneCycle& cycle)
      : first(static_cast<double>(cycle.first_step_size)),
        second(static_cast<double>(cycle.second_step_size.value_or(cycle.first_step_size))),
        total(first + second) {}

  double first;
  double second;
  double total;
};

/// x of a half of the cycle, in whole stairs. It is taken from the number of the step, as x itself
/// may be a rounding error below a stair.
double StairScale(const CycleLengths& lengths, double position, double stairs) {
  const double in_cycle = std::fmod(position, lengths.total);
  const double stair = in_cycle <= lengths.first
                           ? in_cycle * stairs / lengths.first
                           : (lengths.total - in_cycle) * stairs / lengths.second;
  return std::floor(stair) / stairs;
}

/// How far the cycle has come from its bound, from 0 to 1 and back.
double CycleScale(const OneCycle& cycle, int64_t iteration) {
  const CycleLengths lengths(cycle);
  const auto position = static_cast<double>(iteration + 1);
  const double cycles = std::floor(1 + position / lengths.total);
  const double x = 1.0 + position / lengths.total - cycles;
  const double middle = lengths.first / lengths.total;
  const bool first_half = x <= middle;
  const int64_t stairs = first_half ? cycle.first_stair_count
                                    : cycle.second_stair_count.value_or(cycle.first_stair_count);
  if (stairs > 0) return StairScale(lengths, position, static_cast<double>(stairs));
  return first_half ? x / middle : (x - 1) / (middle - 1);
}

/// Intervals of the decay that have passed since the cycle: 0 within it, and if nothing decays.
double DecayIntervals(const OneCycle& cycle, int64_t iteration) {
  const double since = static_cast<double>(iteration) - CycleLengths(cycle).total + 1;
  if (since <= 0 || cycle.decay_step_size == 0) return 0;
  return since / static_cast<double>(cycle.decay_step_size);
}

bool InCycle(const OneCycle& cycle, int64_t iteration) {
  return static_cast<double>(iteration) < CycleLengths(cycle).total;
}

double OneCycleLr(const OneCycle& cycle, int64_t iteration) {
  if (iteration < 0) return cycle.min_lr;
  if (InCycle(cycle, iteration)) {
    return cycle.min_lr + (cycle.max_lr - cycle.min_lr) * CycleScale(cycle, iteration);
  }
  return cycle.min_lr / (1 + cycle.decay_lr_rate * DecayIntervals(cycle, iteration));
}

double OneCycleMomentum(const OneCycle& cycle, int64_t iteration) {
  if (iteration < 0) return cycle.min_mom;
  if (InCycle(cycle, iteration)) {
    return cycle.max_mom - (cycle.max_mom - cycle.min_mom) * CycleScale(cycle, iteration);
  }
  return cycle.max_mom * (1 + cycle.decay_mom_rate * DecayIntervals(cycle, iteration));
}

double RangeTestLr(const LrRangeTest& test, int64_t iteration) {
  double intervals = static_cast<double>(iteration + 1) / static_cast<double>(test.step_size);
  if (test.staircase) intervals = std::floor(intervals);
  return test.min_lr * (1 + test.step_rate * intervals);
}

int64_t IterationOf(uint64_t step) {
  PENSTOCK_CHECK(step >= 1);
  return static_cast<int64_t>(step) - 2;
}

}  // namespace

double LearningRate(const SchedulerConfig& scheduler, double optimizer_lr, uint64_t step) {
  const int64_t iteration = IterationOf(step);
  switch (scheduler.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLr:
    case SchedulerType::kWarmupDecayLr:
      return WarmupLr(scheduler, optimizer_lr, iteration);
    case SchedulerType::kWarmupCosineLr:
      return optimizer_lr * CosineRatio(scheduler, iteration);
    case SchedulerType::kOneCycle:
      return OneCycleLr(scheduler.one_cycle, iteration);
    case SchedulerType::kLrRangeTest:
      return RangeTestLr(scheduler.range_test, iteration);
  }
  return optimizer_lr;
}

const char* KeyOfRate(const SchedulerConfig& scheduler, uint64_t step) {
  constexpr const char* kOptimizers = "optimizer.params.lr";
  switch (scheduler.type) {
    case SchedulerType::kNone:
    case SchedulerType::kWarmupCosineLr:
      break;
    case SchedulerType::kWarmupLr:
    case SchedulerType::kWarmupDecayLr:
      return scheduler.warmup_max_lr ? "scheduler.params.warmup_max_lr" : kOptimizers;
    case SchedulerType::kOneCycle:
      return InCycle(scheduler.one_cycle, IterationOf(step)) ? "scheduler.params.cycle_max_lr"
                                                             : "scheduler.params.cycle_min_lr";
    case SchedulerType::kLrRangeTest:
      return "scheduler.params.lr_range_test_min_lr";
  }
  return kOptimizers;
}

std::optional<Betas> CycledBetas(const SchedulerConfig& scheduler, uint64_t step) {
  const int64_t iteration = IterationOf(step);
  const OneCycle& cycle = scheduler.one_cycle;
  if (scheduler.type != SchedulerType::kOneCycle || !cycle.momentum) return std::nullopt;
  return Betas{.beta1 = OneCycleMomentum(cycle, iteration), .beta2 = kCycledBeta2};
}

Status CheckBetas(const SchedulerConfig& scheduler, uint64_t last) {
  if (last == 0) return {};
  const std::optional<Betas> betas = CycledBetas(scheduler, last);
  // Within the cycle the momentum lies between its bounds, but for a rounding error.
  const bool decays = betas && !InCycle(scheduler.one_cycle, IterationOf(last));
  if (!decays || (betas->beta1 >= 0 && betas->beta1 < 1)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "scheduler.params.decay_mom_rate: at optimizer step {} the momentum is {}, and "
                   "it has to be in [0, 1); set the rate to 0, or train fewer steps",
                   last, betas->beta1);
}

}  // namespace penstock::zero
