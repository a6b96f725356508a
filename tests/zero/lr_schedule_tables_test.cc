// OneCycle and LRRangeTest against what DeepSpeed's classes gave for 100 steps.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/zero/deepspeed_schedules.h"
#include "zero/lr_schedule.h"

namespace penstock::zero {
namespace {

using config::LrRangeTest;
using config::OneCycle;
using config::SchedulerConfig;
using config::SchedulerType;

constexpr double kTolerance = 1e-12;  // relative

SchedulerConfig Scheduler(const OneCycle& cycle) {
  return {.type = SchedulerType::kOneCycle, .one_cycle = cycle};
}

SchedulerConfig Scheduler(const LrRangeTest& test) {
  return {.type = SchedulerType::kLrRangeTest, .range_test = test};
}

const SchedulerConfig kCycle = Scheduler(OneCycle{.min_lr = 0.0003,
                                                  .max_lr = 0.0021,
                                                  .decay_lr_rate = 0.7,
                                                  .first_step_size = 23,
                                                  .decay_step_size = 9,
                                                  .min_mom = 0.85,
                                                  .max_mom = 0.97,
                                                  .decay_mom_rate = 0.003});
const SchedulerConfig kStairs = Scheduler(OneCycle{.min_lr = 1e-4,
                                                   .max_lr = 3e-3,
                                                   .first_step_size = 37,
                                                   .second_step_size = 29,
                                                   .first_stair_count = 5,
                                                   .second_stair_count = 7});

void ExpectRates(const SchedulerConfig& scheduler, const std::array<double, 100>& rates) {
  for (uint64_t step = 1; step <= rates.size(); ++step) {
    const double expected = rates[step - 1];
    EXPECT_NEAR(LearningRate(scheduler, 0.01, step), expected, kTolerance * expected)
        << "step " << step;
  }
}

void ExpectMomenta(const SchedulerConfig& scheduler, const std::array<double, 100>& momenta) {
  for (uint64_t step = 1; step <= momenta.size(); ++step) {
    const std::optional<Betas> betas = CycledBetas(scheduler, step);
    ASSERT_TRUE(betas);
    EXPECT_NEAR(betas->beta1, momenta[step - 1], kTolerance) << "step " << step;
    EXPECT_EQ(betas->beta2, 0.99);
  }
}

TEST(LrScheduleTablesTest, OneCycleThatDecaysHasDeepSpeedsRatesAndMomenta) {
  ExpectRates(kCycle, kCycleRates);
  ExpectMomenta(kCycle, kCycleMomenta);
}

TEST(LrScheduleTablesTest, OneCycleInStairsHasDeepSpeedsRatesAndMomenta) {
  ExpectRates(kStairs, kStairsRates);
  ExpectMomenta(kStairs, kStairsMomenta);
}

TEST(LrScheduleTablesTest, TheRangeTestHasDeepSpeedsRates) {
  ExpectRates(Scheduler(LrRangeTest{.min_lr = 1e-4, .step_size = 7, .step_rate = 0.3}),
              kRangeRates);
  ExpectRates(
      Scheduler(LrRangeTest{.min_lr = 3e-5, .step_size = 11, .step_rate = 1.7, .staircase = true}),
      kRangeStairsRates);
}

TEST(LrScheduleTablesTest, ASecondHalfOfNoStepsEndsTheCycleAtItsTop) {
  const SchedulerConfig scheduler =
      Scheduler(OneCycle{.min_lr = 1, .max_lr = 3, .first_step_size = 2, .second_step_size = 0});
  // Iterations -1, 0, 1, 2: the start, half way up, the end, and what follows.
  EXPECT_EQ(LearningRate(scheduler, 0.01, 1), 1);
  EXPECT_EQ(LearningRate(scheduler, 0.01, 2), 2);
  EXPECT_EQ(LearningRate(scheduler, 0.01, 3), 1);
  EXPECT_EQ(LearningRate(scheduler, 0.01, 4), 1);
}

TEST(LrScheduleTablesTest, NoOtherScheduleSetsTheBetas) {
  EXPECT_FALSE(CycledBetas(SchedulerConfig{}, 1));
  EXPECT_FALSE(CycledBetas(Scheduler(LrRangeTest{}), 5));
  EXPECT_FALSE(CycledBetas(Scheduler(OneCycle{.momentum = false}), 5));
}

TEST(LrScheduleTablesTest, AMomentumThatLeavesItsRangeIsRefusedFromThatStepOn) {
  // 0.9 * (1 + 0.01 * d), where d is 1 at step 6: 1 is reached with d = 12, at step 17.
  OneCycle cycle{.first_step_size = 2, .decay_step_size = 1, .decay_mom_rate = 0.01};
  EXPECT_TRUE(CheckBetas(Scheduler(cycle), 0).ok());
  EXPECT_TRUE(CheckBetas(Scheduler(cycle), 16).ok());
  const Status refused = CheckBetas(Scheduler(cycle), 17);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("scheduler.params.decay_mom_rate: at optimizer step 17"),
            std::string::npos)
      << refused.error().message;
  // One that falls ends below 0.
  cycle.decay_mom_rate = -0.5;
  EXPECT_TRUE(CheckBetas(Scheduler(cycle), 7).ok());
  EXPECT_FALSE(CheckBetas(Scheduler(cycle), 8).ok());
  cycle.momentum = false;
  EXPECT_TRUE(CheckBetas(Scheduler(cycle), 8).ok());
}

}  // namespace
}  // namespace penstock::zero
