// The loss scale against runs of DeepSpeed that people reported, and against its rules.
#include "zero/session/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "base/units.h"

namespace penstock::zero {
namespace {

config::LossScaling Rules(int64_t power, int64_t hysteresis) {
  return {.initial_scale_power = power, .hysteresis = hysteresis};
}

/// Counts steps from 1 on, of which those overflow for which `overflows` says so, and returns the
/// step after which the scale is exhausted; 0 if it is not by `last`.
uint64_t CountSteps(LossScale& scale, uint64_t last,
                    const std::function<bool(uint64_t step)>& overflows,
                    const std::map<uint64_t, double>& expected = {}) {
  for (uint64_t step = 1; step <= last; ++step) {
    scale.Count(overflows(step));
    if (scale.exhausted()) return step;
    const auto known = expected.find(step);
    if (known == expected.end()) continue;
    EXPECT_EQ(scale.value(), known->second) << "after step " << step;
  }
  return 0;
}

TEST(LossScaleTest, ResumesWithOtherRules) {
  config::LossScaling statically = Rules(16, 2);
  statically.loss_scale = 4096;
  LossScale before(statically);
  before.Count(true);
  EXPECT_EQ(LossScale(statically, before.state()).value(), 4096);
  config::LossScaling lower = statically;
  lower.loss_scale = 512;
  LossScale after(lower, before.state());
  EXPECT_EQ(after.value(), 512);
  EXPECT_EQ(after.state().scale, 512);
  const LossScale dynamic(Rules(16, 2), after.state());
  EXPECT_EQ(dynamic.value(), 512) << "it resumes from there";
}

TEST(LossScaleTest, FallsFrom2To12AtStep444AndEndsAt456) {
  LossScale scale(Rules(12, 1));
  const uint64_t end = CountSteps(scale, 1000, [](uint64_t step) { return step >= 444; },
                                  {{443, 4096}, {444, 2048}, {445, 1024}, {454, 2}, {455, 1}});
  EXPECT_EQ(end, 456U);
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScaleTest, LetsOneOverflowOffWithTheDefaultHysteresis) {
  LossScale scale(Rules(18, 2));
  const uint64_t end =
      CountSteps(scale, 1000, [](uint64_t) { return true; }, {{1, 262144}, {2, 131072}, {19, 1}});
  EXPECT_EQ(end, 20U);
}

TEST(LossScaleTest, FallsFrom2To16AtStep51AndEndsAt67) {
  LossScale scale(Rules(16, 1));
  const uint64_t end = CountSteps(scale, 1000, [](uint64_t step) { return step > 50; },
                                  {{50, 65536}, {51, 32768}, {52, 16384}, {60, 64}, {66, 1}});
  EXPECT_EQ(end, 67U);
}

TEST(LossScaleTest, DoublesAfterEveryWindowWithoutAnOverflow) {
  LossScale scale(Rules(16, 2));
  CountSteps(scale, 2000, [](uint64_t) { return false; },
             {{999, 65536}, {1000, 131072}, {1999, 131072}, {2000, 262144}});
  EXPECT_EQ(scale.value(), 262144);
}

TEST(LossScaleTest, AnOverflowBeginsTheWindowAgain) {
  LossScale scale(Rules(16, 1));
  CountSteps(scale, 1600, [](uint64_t step) { return step == 600; },
             {{599, 65536}, {600, 32768}, {1000, 32768}, {1599, 32768}, {1600, 65536}});
}

TEST(LossScaleTest, AStaticScaleStaysAndIsNeverExhausted) {
  config::LossScaling rules;
  rules.loss_scale = 1024;
  LossScale scale(rules);
  EXPECT_EQ(CountSteps(scale, 3000, [](uint64_t step) { return step % 2 == 0; }), 0U);
  EXPECT_EQ(scale.value(), 1024);
  EXPECT_EQ(scale.OverflowsToTheEnd(), kMaxCount);
}

TEST(LossScaleTest, HysteresisComesBackWithAWindow) {
  config::LossScaling rules = Rules(16, 3);
  rules.loss_scale_window = 4;
  LossScale scale(rules);
  // Two are let off, the third halves; none is let off any more until a window has passed.
  CountSteps(scale, 12, [](uint64_t step) { return step <= 4 || step == 9 || step == 11; },
             {{2, 65536}, {3, 32768}, {4, 16384}, {8, 32768}, {9, 32768}, {11, 32768}});
  EXPECT_EQ(scale.state().hysteresis, 1U);
}

TEST(LossScaleTest, ConsecutiveHysteresisComesBackWithEveryStepWithoutAnOverflow) {
  config::LossScaling rules = Rules(16, 2);
  rules.consecutive_hysteresis = true;
  LossScale scale(rules);
  CountSteps(scale, 99, [](uint64_t step) { return step % 2 == 0; });
  EXPECT_EQ(scale.value(), 65536) << "never two in a row";
  CountSteps(scale, 2, [](uint64_t) { return true; });
  EXPECT_EQ(scale.value(), 32768);
}

TEST(LossScaleTest, AMinimumThatHalvingDoesNotMeetIsTheLastScale) {
  config::LossScaling rules = Rules(4, 1);
  rules.min_loss_scale = 3;
  LossScale scale(rules);
  EXPECT_EQ(scale.OverflowsToTheEnd(), 4U);
  EXPECT_EQ(CountSteps(scale, 10, [](uint64_t) { return true; }, {{1, 8}, {2, 4}, {3, 3}}), 4U);
}

TEST(LossScaleTest, OverflowsToTheEndAreCountedFromAnyStep) {
  LossScale reported(Rules(12, 1));
  EXPECT_EQ(reported.OverflowsToTheEnd(), 13U) << "444 to 456";
  for (const int64_t hysteresis : {1, 2, 3}) {
    for (const int64_t power : {0, 1, 7, 16}) {
      for (uint64_t before = 0; before < 6; ++before) {
        LossScale scale(Rules(power, hysteresis));
        if (CountSteps(scale, before, [](uint64_t) { return true; }) != 0) break;
        const uint64_t told = scale.OverflowsToTheEnd();
        EXPECT_EQ(CountSteps(scale, 100, [](uint64_t) { return true; }), told)
            << "2^" << power << ", hysteresis " << hysteresis << ", after " << before;
      }
    }
  }
}

TEST(LossScaleTest, ResumesFromItsStateUnchanged) {
  config::LossScaling rules = Rules(10, 2);
  rules.loss_scale_window = 7;
  const auto overflows = [](uint64_t step) { return step % 11 < 3; };
  LossScale undisturbed(rules);
  LossScale resumed(rules);
  for (uint64_t step = 1; step <= 200; ++step) {
    undisturbed.Count(overflows(step));
    resumed = LossScale(rules, resumed.state());
    resumed.Count(overflows(step));
    ASSERT_EQ(resumed.state(), undisturbed.state()) << "after step " << step;
  }
}

}  // namespace
}  // namespace penstock::zero
