// Steps that the caller of the C interface skips, as a scaler of losses does.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/front/c_rows.h"

namespace penstock::front {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CSkipsTest : public ::testing::Test {
 protected:
  CSkipsTest() { fs::create_directory(drive_); }

  RowTraining Train(const std::string& run) const {
    return {{{"run", run}, {"nvme_path", {drive_}}}, kHomes[3], drive_};
  }
  static penstock_outcome Skip(RowTraining& training, double loss, double loss_scale) {
    penstock_outcome outcome{};
    EXPECT_EQ(penstock_report_loss(training.engine(), loss), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(penstock_skip_step(training.engine(), 2e-2, loss_scale, &outcome), PENSTOCK_OK)
        << penstock_error();
    return outcome;
  }

  const TempFolder temp_;
  const std::string root_ = fs::canonical(temp_.Path());
  const std::string run_ = root_ + "/run";
  const std::string drive_ = root_ + "/drive";
};

TEST_F(CSkipsTest, AStepThatItsCallerSkipsCountsAndHasARow) {
  RowTraining training = Train(run_);
  training.Step(1);
  training.training.ForwardAndBackward(0);
  const penstock_outcome outcome = Skip(training, 0.5, 1024);
  EXPECT_EQ(outcome.step, 2U);
  EXPECT_EQ(outcome.optimizer_steps, 1U);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_TRUE(std::isinf(outcome.grad_norm));
  training.Step(1);
  const std::vector<json> rows = LinesOf(run_ + "/metrics.jsonl");
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[1]["step"], 2);
  EXPECT_EQ(rows[1]["loss"], 0.5);
  EXPECT_EQ(rows[1]["skipped"], true);
  EXPECT_EQ(rows[1]["loss_scale"], 1024);
  EXPECT_EQ(rows[1]["grad_norm"], nullptr);
  EXPECT_EQ(rows[1]["lr"], 2e-2);
  EXPECT_EQ(rows[2]["samples"], 3);
}

TEST_F(CSkipsTest, ItChangesNoBitWhereverItEnds) {
  RowTraining plain = Train(run_);
  RowTraining skips = Train(root_ + "/skips");
  for (int step = 0; step < 3; ++step) {
    Skip(skips, 1, 8);  // before anything of it was computed
    skips.training.ForwardAndBackward(0);
    double norm = 0;
    int finite = 0;
    ASSERT_EQ(penstock_norm(skips.engine(), &norm, &finite), PENSTOCK_OK) << penstock_error();
    Skip(skips, 1, 8);
    EXPECT_EQ(skips.Step(1).grad_norm, plain.Step(1).grad_norm);
  }
}

TEST_F(CSkipsTest, ItReportsItsLossAsAnyOtherStep) {
  RowTraining training = Train(run_);
  training.Step(1);
  training.training.ForwardAndBackward(0);
  penstock_outcome outcome{};
  EXPECT_EQ(penstock_skip_step(training.engine(), 1e-2, 8, &outcome), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("step 2 "));
  EXPECT_EQ(Skip(training, 1, 8).step, 2U);
}

TEST_F(CSkipsTest, AScalerThatFindsItsScaleIsNoFindingAndOneThatDoesNotEndsTheTraining) {
  RowTraining training = Train(run_);
  double scale = 65536;
  for (int step = 0; step < 3; ++step, scale /= 2) Skip(training, 1, scale);
  EXPECT_THAT(training.Notices(), IsEmpty());
  for (int step = 3; step < 20; ++step, scale /= 2) Skip(training, 1, scale);
  EXPECT_FALSE(training.Notices().empty());
  EXPECT_EQ(penstock_use(training.engine(), 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_NUMERIC);
  EXPECT_THAT(penstock_error(), HasSubstr("20 steps in a row"));
}

TEST_F(CSkipsTest, WhatCannotBeIsRefused) {
  RowTraining training = Train(run_);
  penstock_outcome outcome{};
  for (const double scale : {0.0, -1.0, HUGE_VAL}) {
    EXPECT_EQ(penstock_skip_step(training.engine(), 1e-2, scale, &outcome),
              PENSTOCK_INVALID_ARGUMENT);
  }
  EXPECT_EQ(penstock_skip_step(training.engine(), 1e-2, 8, nullptr), PENSTOCK_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace penstock::front
