// The time of a ramp-up, and of a drive in it.
#include "sizing/ramp_time.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/units.h"

namespace penstock::train {
namespace {

/// Through two steps that the source measured: of 512 and of 2048 samples.
StepTimeLine SourceLine() {
  const double sample_s = (107.12 - 35.77) / (2048 - 512);
  return {.fixed_s = 35.77 - 512 * sample_s, .sample_s = sample_s};
}

TEST(RampTimeTest, TwoStepsPredictTheOthersWithinHalfAPercent) {
  const StepTimeLine line = SourceLine();
  EXPECT_NEAR(line.fixed_s, 11.987, 0.0005);
  EXPECT_NEAR(line.sample_s, 0.046452, 0.0000005);
  EXPECT_NEAR(line.At(1024), 59.55, 0.005);
  EXPECT_NEAR(line.At(1024), 59.65, 0.005 * 59.65);
  EXPECT_NEAR(line.At(1536), 83.34, 0.005);
  EXPECT_NEAR(line.At(1536), 83.11, 0.005 * 83.11);
}

TEST(RampTimeTest, ARampIsTheSumOfItsSteps) {
  for (const uint64_t start : {16, 384}) {
    const BatchRampup rampup(2048, BatchGrowth{start, 16, 9'765'625});
    const StepTimeLine line = SourceLine();
    for (const double drive_s : {0.0, 20.0, 50.0, 1000.0}) {
      RampTime sum;
      for (uint64_t consumed = 0; consumed < 9'765'625;) {
        const uint64_t batch = rampup.BatchAfter(consumed);
        consumed += batch;
        ++sum.steps;
        sum.seconds += std::max(line.At(batch), drive_s);
        if (line.At(batch) >= drive_s) continue;
        ++sum.drive_bound_steps;
        sum.drive_bound_s += drive_s - line.At(batch);
      }
      const RampTime time = TimeOfRamp(rampup, 9'765'625, {line}, drive_s);
      EXPECT_EQ(time.steps, sum.steps);
      EXPECT_EQ(time.steps, start == 16 ? 26'076 : 9'926);
      EXPECT_NEAR(time.seconds / sum.seconds, 1, 1e-9);
      EXPECT_EQ(time.drive_bound_steps, sum.drive_bound_steps);
      EXPECT_NEAR(time.drive_bound_s, sum.drive_bound_s, 1e-6 * sum.seconds);
    }
  }
}

TEST(RampTimeTest, TheDriveIsHiddenFromTheBatchThatTakesItsTime) {
  const StepTimeLine line = SourceLine();
  EXPECT_EQ(HiddenFrom({line}, 11), 1);
  const uint64_t samples = HiddenFrom({line}, 50);
  EXPECT_GE(line.At(samples), 50);
  EXPECT_LT(line.At(samples - 1), 50);
  EXPECT_EQ(HiddenFrom({{.fixed_s = 5, .sample_s = 0}}, 50), kMaxCount);
}

TEST(RampTimeTest, OfTwoResourcesTheSlowerOneCountsAtEachBatch) {
  const StepTimeLines lines = {{.fixed_s = 10, .sample_s = 1}, {.fixed_s = 0, .sample_s = 2}};
  const BatchRampup rampup(20, BatchGrowth{5, 15, 30});
  // Steps of 5 until 30 samples were taken, then one of 20 would follow.
  EXPECT_EQ(TimeOfRamp(rampup, 30, lines, 0).seconds, 6 * 15);
  EXPECT_EQ(TimeOfRamp(BatchRampup(20), 20, lines, 0).seconds, 40);
  EXPECT_EQ(HiddenFrom(lines, 15), 5);
  EXPECT_EQ(HiddenFrom(lines, 50), 25);
}

TEST(RampTimeTest, TextAndJsonSayWhereTheDriveBounds) {
  const BatchRampup rampup(2048, BatchGrowth{384, 16, 9'765'625});
  EXPECT_EQ(RampTimeText(TimeOfRamp(rampup, 9'765'625, {SourceLine()}, 0)),
            "9926 steps, 6.63 days");
  const RampTime bound = TimeOfRamp(rampup, 9'765'625, {SourceLine()}, 50);
  EXPECT_EQ(
      RampTimeText(bound),
      "9926 steps, 7.24 days; 4605 of them wait for the drive, 0.61 days in all, as its bytes "
      "do not shrink with the batch: a batch of 819 hides it");
  EXPECT_EQ(RampTimeJson(bound)["hidden_from"], 819);
  const RampTime never = TimeOfRamp(BatchRampup(8), 16, {{.fixed_s = 1}}, 2);
  EXPECT_EQ(RampTimeJson(never)["hidden_from"], nullptr);
  EXPECT_EQ(never.seconds, 4);
}

TEST(RampTimeTest, LargeNumbersDoNotRunForever) {
  const RampTime time = TimeOfRamp(BatchRampup(1), kMaxCount, {{.sample_s = 1}}, 0);
  EXPECT_EQ(time.steps, kMaxCount);
}

}  // namespace
}  // namespace penstock::train
