#include "train/doctor/step_bound.h"

#include <gmock/gmock.h>

#include <optional>

#include "tests/train/doctor/support.h"
#include "train/plan/step_floors.h"

namespace penstock::train {
namespace {

/// Ten steps of a second, in which computation takes `compute` and waiting for data `wait`, and a
/// GB is read and another written.
StepFigures Steps(double compute, double wait, double optimizer = 0.1) {
  return {.rows = 10,
          .step_s = 10,
          .compute_s = 10 * compute,
          .io_wait_s = 10 * wait,
          .optimizer_s = 10 * optimizer,
          .read_bytes = 10e9,
          .write_bytes = 10e9};
}

TEST(StepBoundTest, DrivesOfHalfOnceAndFourTimesTheSpeedHaveThreeDiagnoses) {
  // With a noise of a quarter in the time of computation.
  for (const double noise : {0.8, 1.0, 1.25}) {
    EXPECT_EQ(FindBound(Steps(0.49 * noise, 0.5), 10 * 0.98), StepBound::kIo) << noise;
    EXPECT_EQ(FindBound(Steps(0.75 * noise, 0.1), 10 * 0.75), StepBound::kBalanced) << noise;
    EXPECT_EQ(FindBound(Steps(0.75 * noise, 0.1), 10 * 0.19), StepBound::kCompute) << noise;
  }
}

TEST(StepBoundTest, WaitingWithAnIdleDriveIsAMatterOfHostMemoryOrOfSettings) {
  EXPECT_EQ(FindBound(Steps(0.5, 0.4), 10 * 0.1), StepBound::kHostMemory);
  EXPECT_EQ(FindBound(Steps(0.5, 0.19), 10 * 0.1), StepBound::kCompute);
  StepFigures figures = Steps(0.5, 0.4);
  figures.host_share = 0.95;
  EXPECT_EQ(FindBound(figures, 10 * 0.1), StepBound::kHostMemory);
  EXPECT_THAT(BoundCheck(figures, {.seconds = 1}),
              CheckIs(CheckState::kWarn, "host memory is used to 95 %"));
  figures.host_share = 0.5;
  EXPECT_EQ(FindBound(figures, 10 * 0.1), StepBound::kSlowIo);
  EXPECT_THAT(BoundCheck(figures, {.seconds = 1}), CheckIs(CheckState::kWarn, "penstock tune"));
}

TEST(StepBoundTest, WaitingForADriveOfUnknownSpeedPointsToTheDrive) {
  EXPECT_EQ(FindBound(Steps(0.5, 0.4), std::nullopt), StepBound::kIo);
  EXPECT_THAT(BoundCheck(Steps(0.5, 0.4), {.seconds = {}, .how_to_know = "look at the drive"}),
              CheckIs(CheckState::kWarn, "bf16.bf16_optimizer_states; look at the drive"));
}

TEST(StepBoundTest, AnOptimizerThatWorksAllTheTimeBoundsTheSteps) {
  EXPECT_EQ(FindBound(Steps(0.3, 0.6, 0.9), 10 * 0.1), StepBound::kOptimizer);
  EXPECT_EQ(FindBound(Steps(0.3, 0.6, 0.9), 10 * 0.8), StepBound::kOptimizer);
  EXPECT_EQ(FindBound(Steps(0.3, 0.6, 0.9), 10 * 0.95), StepBound::kIo);
  EXPECT_THAT(BoundCheck(Steps(0.3, 0.6, 0.9), {.seconds = 1}),
              CheckIs(CheckState::kWarn, "optimizer_threads"));
}

TEST(StepBoundTest, UpdatesThatNothingRunsBesideAreNamed) {
  StepFigures figures = Steps(0.6, 0.1, 0.3);
  figures.overlap = 0.1;
  EXPECT_EQ(FindBound(figures, 10 * 0.1), StepBound::kUpdatesAlone);
  EXPECT_THAT(BoundCheck(figures, {.seconds = 1}),
              CheckIs(CheckState::kWarn, "the optimizer 30 % (10 % of it under computation)"));
  figures.overlap = 0.9;
  EXPECT_EQ(FindBound(figures, 10 * 0.1), StepBound::kCompute);
}

TEST(StepBoundTest, WaitingForRanksComesBeforeWaitingForData) {
  StepFigures figures = Steps(0.4, 0.2);
  figures.comm_wait_s = 4;
  EXPECT_EQ(FindBound(figures, 10 * 0.1), StepBound::kCommunication);
  EXPECT_THAT(BoundCheck(figures, {.seconds = 1}),
              CheckIs(CheckState::kWarn, "waiting for ranks 40 %"));
}

TEST(StepBoundTest, FewRowsAndEmptyOnesSayNothing) {
  StepFigures figures = Steps(0.5, 0.4);
  figures.rows = 2;
  EXPECT_EQ(FindBound(figures, 1), StepBound::kTooFewSteps);
  EXPECT_EQ(BoundCheck(figures, {.seconds = 1}).state, CheckState::kUnknown);
  EXPECT_EQ(FindBound({.rows = 10}, 0), StepBound::kTooFewSteps);
  EXPECT_EQ(FindBound(Steps(0.1, 0.1), 1), StepBound::kNothing);
}

TEST(StepBoundTest, TheFiguresAndTheAdviceStandInTheLine) {
  const Check check = BoundCheck(Steps(0.49, 0.5), {.seconds = 9.8});
  EXPECT_THAT(check, CheckIs(CheckState::kWarn,
                             "io-bound: of a step of 1 s computation takes 49 %, waiting for data "
                             "50 %, the optimizer 10 %, and the drive needs 98 %"));
  EXPECT_THAT(check, CheckIs(CheckState::kWarn, "more tokens a step"));
  EXPECT_EQ(BoundCheck(Steps(0.8, 0.1), {.seconds = 1}).state, CheckState::kOk);
  EXPECT_THAT(BoundCheck(Steps(0.8, 0.1), {.seconds = 1, .note = "of a half"}),
              CheckIs(CheckState::kOk, "the drive needs 10 % (of a half);"));
}

TEST(StepBoundTest, ADriveServesBothDirectionsAtOnceUnlessTheyAreShared) {
  EXPECT_EQ(DriveTime(10e9, 10e9, DriveOf(2, 1, false)), 10);
  EXPECT_EQ(DriveTime(10e9, 10e9, DriveOf(2, 9, true)), 10);
  EXPECT_EQ(DriveTime(10e9, 10e9, sim::DriveSpeed()), 0);
  EXPECT_EQ(DriveTime(10e9, 10e9, std::nullopt), std::nullopt);
  EXPECT_EQ(DriveTime(0, 0, std::nullopt), 0);
}

}  // namespace
}  // namespace penstock::train
