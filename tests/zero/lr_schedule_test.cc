// LearningRate against values worked out by hand from DeepSpeed's formulas. Step s runs at
// iteration s - 2; the first two steps have the minimum.
#include <gtest/gtest.h>

#include <cmath>

#include "zero/lr_schedule.h"

namespace penstock::zero {
namespace {

using config::SchedulerConfig;
using config::SchedulerType;
using config::WarmupType;

constexpr double kOptimizerLr = 0.01;

SchedulerConfig Warmup(SchedulerType type, WarmupType warmup_type) {
  SchedulerConfig scheduler;
  scheduler.type = type;
  scheduler.warmup_type = warmup_type;
  scheduler.warmup_min_lr = 0.001;
  scheduler.warmup_max_lr = 0.005;
  scheduler.warmup_num_steps = 4;
  scheduler.total_num_steps = 12;
  return scheduler;
}

void ExpectRates(const SchedulerConfig& scheduler,
                 std::initializer_list<std::pair<uint64_t, double>> rates) {
  for (const auto& [step, rate] : rates) {
    EXPECT_NEAR(LearningRate(scheduler, kOptimizerLr, step), rate, 1e-15) << "step " << step;
  }
}

TEST(LrScheduleTest, WithoutASchedulerTheRateIsTheOptimizers) {
  ExpectRates(SchedulerConfig{}, {{1, 0.01}, {2, 0.01}, {1000000, 0.01}});
}

TEST(LrScheduleTest, LinearWarmupHoldsTheMinimumForTwoStepsAndEndsAtTheMaximum) {
  ExpectRates(Warmup(SchedulerType::kWarmupLr, WarmupType::kLinear), {{1, 0.001},
                                                                      {2, 0.001},
                                                                      {3, 0.002},
                                                                      {4, 0.003},
                                                                      {5, 0.004},
                                                                      {6, 0.005},
                                                                      {7, 0.005},
                                                                      {1000000, 0.005}});
}

TEST(LrScheduleTest, LogWarmupReachesTheMaximumOneStepEarlier) {
  // gamma(i) = ln(i + 1) / ln 4: 0, 1/2, 0.79248..., 1.
  ExpectRates(Warmup(SchedulerType::kWarmupLr, WarmupType::kLog),
              {{1, 0.001},
               {2, 0.001},
               {3, 0.003},
               {4, 0.001 + 0.004 * std::log2(3.0) / 2},
               {5, 0.005},
               {6, 0.005},
               {100, 0.005}});
}

TEST(LrScheduleTest, WithoutAMaximumWarmupEndsAtTheOptimizersRate) {
  SchedulerConfig scheduler = Warmup(SchedulerType::kWarmupLr, WarmupType::kLinear);
  scheduler.warmup_max_lr.reset();
  scheduler.warmup_min_lr = 0;
  ExpectRates(scheduler, {{1, 0}, {2, 0}, {3, 0.0025}, {6, 0.01}});
}

TEST(LrScheduleTest, AWarmupBelowTwoStepsTakesTwo) {
  SchedulerConfig scheduler = Warmup(SchedulerType::kWarmupLr, WarmupType::kLinear);
  scheduler.warmup_num_steps = 0;
  ExpectRates(scheduler, {{1, 0.001}, {2, 0.001}, {3, 0.003}, {4, 0.005}});
}

TEST(LrScheduleTest, DecayFallsLinearlyToZeroAtTheTotalAndStaysThere) {
  // After the warm-up gamma(i) = (12 - i) / 8 between the minimum and the maximum.
  ExpectRates(Warmup(SchedulerType::kWarmupDecayLr, WarmupType::kLinear), {{1, 0.001},
                                                                           {2, 0.001},
                                                                           {3, 0.002},
                                                                           {5, 0.004},
                                                                           {6, 0.005},
                                                                           {7, 0.0045},
                                                                           {10, 0.003},
                                                                           {13, 0.0015},
                                                                           {14, 0.001},
                                                                           {15, 0.001},
                                                                           {1000, 0.001}});
}

TEST(LrScheduleTest, DecayWithATotalInsideTheWarmupEndsAtTheMinimum) {
  SchedulerConfig scheduler = Warmup(SchedulerType::kWarmupDecayLr, WarmupType::kLinear);
  scheduler.total_num_steps = 3;
  ExpectRates(scheduler, {{3, 0.002}, {5, 0.004}, {6, 0.001}, {7, 0.001}});
}

TEST(LrScheduleTest, CosineStartsAtZeroAndEndsAtItsMinimumRatio) {
  SchedulerConfig scheduler = Warmup(SchedulerType::kWarmupCosineLr, WarmupType::kLinear);
  scheduler.warmup_min_ratio = 0.2;
  scheduler.cos_min_ratio = 0.1;
  const auto ratio = [](double progress) {
    return 0.1 + 0.9 * (1 + std::cos(M_PI * progress)) / 2;
  };
  // Iteration -1 is 0, whatever the minimum ratio; then ratios of the optimizer's rate.
  ExpectRates(scheduler, {{1, 0},
                          {2, 0.002},
                          {3, 0.004},
                          {5, 0.008},
                          {6, 0.01 * ratio(1.0 / 8)},
                          {9, 0.01 * 0.55},
                          {12, 0.01 * ratio(7.0 / 8)},
                          {13, 0.001},
                          {14, 0.001},
                          {100000, 0.001}});
}

TEST(LrScheduleTest, CosineWithATotalInsideTheWarmupStaysAtItsMinimumRatio) {
  SchedulerConfig scheduler = Warmup(SchedulerType::kWarmupCosineLr, WarmupType::kLinear);
  scheduler.total_num_steps = 2;
  scheduler.cos_min_ratio = 0.1;
  ExpectRates(scheduler, {{5, 0.0075}, {6, 0.001}, {7, 0.001}});
}

TEST(LrScheduleTest, StepsCountFromOne) {
  EXPECT_DEATH(LearningRate(SchedulerConfig{}, kOptimizerLr, 0), "check failed");
}

TEST(KeyOfRateTest, IsThatOfTheScheduleWhereItHasARateOfItsOwn) {
  SchedulerConfig scheduler;
  EXPECT_STREQ(KeyOfRate(scheduler, 1), "optimizer.params.lr");
  scheduler.type = SchedulerType::kWarmupLr;
  EXPECT_STREQ(KeyOfRate(scheduler, 1), "optimizer.params.lr");
  scheduler.warmup_max_lr = 1e-3;
  EXPECT_STREQ(KeyOfRate(scheduler, 1), "scheduler.params.warmup_max_lr");
  scheduler.type = SchedulerType::kWarmupCosineLr;
  EXPECT_STREQ(KeyOfRate(scheduler, 1), "optimizer.params.lr");
  scheduler.type = SchedulerType::kLrRangeTest;
  EXPECT_STREQ(KeyOfRate(scheduler, 1), "scheduler.params.lr_range_test_min_lr");
  scheduler.type = SchedulerType::kOneCycle;
  scheduler.one_cycle.first_step_size = 4;
  EXPECT_STREQ(KeyOfRate(scheduler, 3), "scheduler.params.cycle_max_lr");
  EXPECT_STREQ(KeyOfRate(scheduler, 100), "scheduler.params.cycle_min_lr");
}

}  // namespace
}  // namespace penstock::zero
