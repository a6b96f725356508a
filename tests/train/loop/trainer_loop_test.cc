// The loop over steps: rows, counts, the end.
#include <gmock/gmock.h>

#include "tests/train/loop/trainer_loop_support.h"
#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(TrainLoopTest, WritesOneRowAStepAndCommitsTheLast) {
  const Result<LoopSummary> summary = Run(3);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(Column<uint64_t>("step"), ElementsAre(1, 2, 3));
  EXPECT_THAT(Column<double>("loss"), ElementsAre(9, 8, 7));
  EXPECT_THAT(Column<double>("grad_norm"), Each(2.0));
  EXPECT_THAT(Column<double>("lr"), Each(0.5));
  EXPECT_THAT(Column<uint64_t>("tokens"), Each(16));
  EXPECT_THAT(Column<uint64_t>("nvme_read_bytes"), Each(14));
  EXPECT_THAT(Column<uint64_t>("nvme_write_bytes"), Each(12));
  EXPECT_THAT(Column<uint64_t>("device_peak_bytes"), Each((2_MiB).value));
  EXPECT_THAT(Column<uint64_t>("host_peak_bytes"), Each((5_MiB).value));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 3));
  EXPECT_EQ(summary->steps, 3U);
  EXPECT_EQ(summary->tokens, 48U);
  EXPECT_EQ(summary->first_loss, 9);
  EXPECT_EQ(summary->last_loss, 7);
  EXPECT_EQ(summary->committed_step, 3U);
  EXPECT_FALSE(summary->interrupted);
}

TEST_F(TrainLoopTest, ReadsMadeBeforeTheFirstStepAreItsOwnAndRowsSumUpToTheSummary) {
  engine_.totals.nvme_read_bytes = 7;
  const Result<LoopSummary> summary = Run(3);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(Column<uint64_t>("nvme_read_bytes"), ElementsAre(21, 14, 14));
  EXPECT_EQ(summary->end.counters.nvme_read_bytes - summary->begin.counters.nvme_read_bytes, 49U);
}

TEST_F(TrainLoopTest, GivesEachStepItsMicroBatchesInOrder) {
  ASSERT_TRUE(Run(2).ok());
  ASSERT_EQ(model_.inputs.size(), 2U);
  // Four rows of four tokens a step; ten rows an epoch.
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(model_.inputs[0][i], static_cast<int32_t>(i));
    EXPECT_EQ(model_.inputs[1][i], static_cast<int32_t>(16 + i));
    EXPECT_EQ(model_.targets[1][i], static_cast<int32_t>(17 + i));
  }
}

/// The first tokens of the rows that a step was given; ten rows an epoch.
std::vector<int32_t> RowsOf(const std::vector<int32_t>& inputs) {
  std::vector<int32_t> rows;
  for (size_t i = 0; i < inputs.size(); i += kSequence) {
    rows.push_back(inputs[i] / static_cast<int32_t>(kSequence));
  }
  return rows;
}

TEST_F(TrainLoopTest, ABatchThatGrowsTakesTheRowsAfterThoseThatWereTaken) {
  options_.config.rampup = config::RampupConfig{.start = 2, .increment = 2, .samples = 6};
  options_.config.commit_every_steps = 1;
  ASSERT_TRUE(Run(5).ok());
  EXPECT_THAT(Column<uint64_t>("tokens"), ElementsAre(8, 8, 8, 16, 16));
  EXPECT_THAT(RowsOf(model_.inputs[0]), ElementsAre(0, 1));
  EXPECT_THAT(RowsOf(model_.inputs[2]), ElementsAre(4, 5));
  EXPECT_THAT(RowsOf(model_.inputs[3]), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(RowsOf(model_.inputs[4]), ElementsAre(0, 1, 2, 3));
  std::vector<uint64_t> consumed;
  for (const zero::TrainState& state : engine_.commits) {
    consumed.push_back(nlohmann::json::parse(state.run_json).at("consumed_samples"));
  }
  EXPECT_THAT(consumed, ElementsAre(0, 2, 4, 6, 10, 14));
}

TEST_F(TrainLoopTest, ABatchThatGrowsResumesAfterTheSamplesOfTheCommit) {
  options_.config.rampup = config::RampupConfig{.start = 2, .increment = 2, .samples = 6};
  consumed_samples_ = 4;
  ASSERT_TRUE(Run(2).ok());
  EXPECT_THAT(RowsOf(model_.inputs[0]), ElementsAre(4, 5));
  EXPECT_THAT(RowsOf(model_.inputs[1]), ElementsAre(6, 7, 8, 9));
}

TEST_F(TrainLoopTest, ACommitDoesNotSayWhatWasTakenIfAllStepsTakeAsMuch) {
  ASSERT_TRUE(Run(2).ok());
  EXPECT_FALSE(nlohmann::json::parse(engine_.commits[0].run_json).contains("consumed_samples"));
}

TEST_F(TrainLoopTest, TheScheduleCountsStepsHoweverLargeTheirBatch) {
  options_.config.rampup = config::RampupConfig{.start = 2, .increment = 2, .samples = 6};
  options_.config.scheduler.type = config::SchedulerType::kWarmupLr;
  options_.config.scheduler.warmup_num_steps = 10;
  options_.config.scheduler.warmup_type = config::WarmupType::kLinear;
  engine_.skip = {false, true};
  ASSERT_TRUE(Run(5).ok());
  for (const auto& call : engine_.steps) {
    EXPECT_EQ(call.lr, zero::LearningRate(options_.config.scheduler, 0.5, call.t));
  }
  EXPECT_EQ(engine_.steps.back().t, 4U);
  // A step that is skipped has taken its rows.
  EXPECT_THAT(RowsOf(model_.inputs[2]), ElementsAre(4, 5));
}

TEST_F(TrainLoopTest, WithoutStepsOnlyCommits) {
  const Result<LoopSummary> summary = Run(0);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  EXPECT_TRUE(run_.kept);
  EXPECT_TRUE(Rows().empty());
  EXPECT_FALSE(summary->first_loss.has_value());
}

TEST_F(TrainLoopTest, SkippedStepsAdvanceNeitherAdamsCountNorTheSchedule) {
  options_.config.scheduler.type = config::SchedulerType::kWarmupLr;
  options_.config.scheduler.warmup_num_steps = 10;
  options_.config.scheduler.warmup_type = config::WarmupType::kLinear;
  engine_.skip = {false, true, true, false};
  const Result<LoopSummary> summary = Run(5);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  std::vector<uint64_t> t;
  for (const auto& call : engine_.steps) {
    t.push_back(call.t);
    EXPECT_EQ(call.lr, zero::LearningRate(options_.config.scheduler, 0.5, call.t));
  }
  EXPECT_THAT(t, ElementsAre(1, 2, 2, 2, 3));
  EXPECT_THAT(Column<bool>("skipped"), ElementsAre(false, true, true, false, false));
  EXPECT_TRUE(Rows()[1].at("grad_norm").is_null());
  EXPECT_EQ(summary->skipped, 2U);
  ASSERT_EQ(engine_.commits.size(), 2U);
  EXPECT_EQ(engine_.commits[1].step, 5U);
  EXPECT_EQ(engine_.commits[1].optimizer_steps, 3U);
  EXPECT_EQ(engine_.commits[1].skipped_in_a_row, 0U);
}

TEST_F(TrainLoopTest, StepsThatArePassedOverUseUpTheirNumbersAndTheirDataAndNothingElse) {
  options_.skips = {{1, 1}, {3, 4}};
  options_.config.commit_every_steps = 4;
  const Result<LoopSummary> summary = Run(6);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(Column<uint64_t>("step"), ElementsAre(2, 5, 6));
  EXPECT_EQ(Rows()[0].at("previous_row"), 0);
  EXPECT_EQ(Rows()[1].at("previous_row"), 2);
  EXPECT_FALSE(Rows()[2].contains("previous_row"));
  // Four rows of four tokens a step, and ten rows an epoch.
  ASSERT_EQ(model_.inputs.size(), 3U);
  EXPECT_EQ(model_.inputs[0][0], 16);
  EXPECT_EQ(model_.inputs[1][0], 24) << "row 16 of the data, modulo 10";
  std::vector<uint64_t> t;
  for (const auto& call : engine_.steps) t.push_back(call.t);
  EXPECT_THAT(t, ElementsAre(1, 2, 3));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 5, 6)) << "a commit was due at step 4";
  EXPECT_EQ(engine_.commits[1].optimizer_steps, 2U);
  EXPECT_EQ(summary->steps, 3U);
}

TEST_F(TrainLoopTest, TheFirstRowSaysWhatWasChangedBeforeIt) {
  options_.changed = {"optimizer.params.lr"};
  ASSERT_TRUE(Run(2).ok());
  EXPECT_THAT(Rows()[0].at("changed"), ElementsAre("optimizer.params.lr"));
  EXPECT_FALSE(Rows()[1].contains("changed"));
}

TEST_F(TrainLoopTest, TwentySkippedStepsInARowEndTheRunWithAllRowsAndNoLaterCommit) {
  engine_.skip.assign(100, true);
  engine_.skip[0] = false;
  const Result<LoopSummary> summary = Run(100);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
  EXPECT_THAT(summary.error().message, HasSubstr("step 0 is committed"));
  EXPECT_EQ(Rows().size(), 21U);
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  EXPECT_TRUE(run_.kept);
}

TEST_F(TrainLoopTest, TheEngineIsToldOfTheLastStepAloneAndBeforeItBegins) {
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(engine_.last_expected_after, ElementsAre(2));
}

TEST_F(TrainLoopTest, NineteenSkippedStepsInARowDoNotEndTheRun) {
  engine_.skip.assign(19, true);
  EXPECT_TRUE(Run(21).ok());
  EXPECT_EQ(Rows().size(), 21U);
}

TEST_F(TrainLoopTest, FailuresOfTheEngineAreItsErrors) {
  options_.config.durable = false;
  engine_.fail_steps_from = 1;
  const Result<LoopSummary> step = Run(3);
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code, ErrorCode::kIo);
  EXPECT_EQ(step.error().message, "a bad block");
  EXPECT_TRUE(engine_.commits.empty());
  EXPECT_FALSE(run_.kept);
}

}  // namespace
}  // namespace penstock::train
