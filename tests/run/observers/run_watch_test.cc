#include "run/observers/run_watch.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "run/rows/numerics_files.h"
#include "tests/numerics/support.h"
#include "tests/run/observers/support.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// One matrix of 100 elements, outside of layers, in a run in fp32.
WatchedRun OneMatrix() {
  return {.facts = {.dtype = DType::kFloat32, .vocabulary = 256, .tensors = {{.name = "w"}}},
          .elements = {100}};
}

class RunWatchTest : public ::testing::Test {
 protected:
  void Begin(std::optional<uint64_t> resumed_after = {}, ReplayedSteps* record = nullptr) {
    Result<std::unique_ptr<RunWatch>> watch = RunWatch::Begin(
        folder_, OneMatrix(), resumed_after,
        [this](const std::string& line) { said_.push_back(line); }, record);
    ASSERT_TRUE(watch.ok()) << watch.error().message;
    watch_ = *std::move(watch);
  }
  void Step(uint64_t step, double loss, zero::StepFigures figures = {}) {
    const bool finite = std::isfinite(loss);
    DoneStep done{.numbers = {.step = step,
                              .loss = loss,
                              .forward_finite = finite,
                              .grad_norm = finite ? 1 : kInfinity,
                              .skipped = !finite,
                              .lr = 0.1,
                              .rows = {17}},
                  .figures = figures};
    EXPECT_TRUE(watch_->AfterStep(done).ok());
  }
  std::vector<std::string> Kept() const {
    std::vector<std::string> messages;
    const std::vector<Report> reports = ReadReports(folder_).value();
    for (const Report& report : reports) messages.push_back(report.message);
    return messages;
  }
  void EndBy(ErrorCode code) { watch_->AtEnd({.step = 2, .failure = Error{code, "the line"}}); }

  const TempFolder run_;
  const Folder folder_ = run_.Open();
  std::vector<std::string> said_;
  std::unique_ptr<RunWatch> watch_;
};

TEST_F(RunWatchTest, OfHealthyStepsNothingIsReportedOrKept) {
  Begin();
  for (uint64_t step = 1; step <= 50; ++step) Step(step, 2.3);
  watch_->AtEnd({.step = 50});
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_THAT(run_.List(), IsEmpty());
}

TEST_F(RunWatchTest, WhatIsReportedIsKept) {
  Begin();
  Step(1, 2.3);
  Step(2, kNotANumber);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], AllOf(HasSubstr("step 2"), HasSubstr("row 17")));
  EXPECT_EQ(Kept(), said_);
}

TEST_F(RunWatchTest, AnUpdateIsThatOfTheLastStepThatWasApplied) {
  Begin();
  Step(1, 2.3);
  Step(2, kNotANumber);
  // The figures of an update come with the step after it.
  Step(3, 2.3,
       {.gradients = {{.sum_of_squares = 1, .largest = 0.1F}},
        .updates = {{.sum_of_squares = 1e62, .update_sum_of_squares = 1e62, .largest = 1e30F}}});
  ASSERT_GE(said_.size(), 2U);
  EXPECT_THAT(said_[1], AllOf(HasSubstr("step 1"), HasSubstr("w")));
}

TEST_F(RunWatchTest, AFileThatCannotBeWrittenIsReportedOnceAndWatchingContinues) {
  Begin();
  std::filesystem::create_directory(run_.Path(kReportsName));
  Step(1, kNotANumber);
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[1], HasSubstr("findings about numerics are not written"));
  Step(2, kNotANumber);
  EXPECT_EQ(said_.size(), 3U) << "the report of the second step";
}

TEST_F(RunWatchTest, ARefusedCommitIsKeptAndTheEndOfTheRunReportsIt) {
  Begin();
  Step(1, 2.3);
  watch_->CommitRefused(1, "step 1: the weights are destroyed");
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_THAT(Kept(), ElementsAre("step 1: the weights are destroyed"));
}

TEST_F(RunWatchTest, ARunThatItsNumbersEndAloneLeavesABlackBox) {
  Begin();
  Step(1, kNotANumber);
  Step(2, kNotANumber);
  watch_->AtEnd({.step = 2});
  EndBy(ErrorCode::kIo);
  EXPECT_FALSE(run_.Has(kBlackBoxName));
  EndBy(ErrorCode::kNumeric);
  const nlohmann::json box = nlohmann::json::parse(run_.Read(kBlackBoxName));
  EXPECT_EQ(box.at("step"), 2);
  EXPECT_EQ(box.at("stop"), "the line");
}

TEST_F(RunWatchTest, AResumedRunHasNoEndAnyMoreAndDoesNotRepeatItsReports) {
  Begin();
  Step(1, 2.3);
  Step(2, kNotANumber);
  EndBy(ErrorCode::kNumeric);
  const std::vector<std::string> before = said_;
  run_.Write("metrics.jsonl", "{\"step\": 1, \"loss\": 2.3}\n{\"step\": 2, \"loss\": null}\n");
  Begin(2);
  EXPECT_FALSE(run_.Has(kBlackBoxName));
  EXPECT_EQ(said_, before);
  EXPECT_EQ(Kept(), before);
}

TEST_F(RunWatchTest, ARecordGetsStepsUpdatesAndReports) {
  ReplayedSteps record;
  Begin({}, &record);
  Step(1, 2.3);
  Step(2, 2.3,
       {.gradients = {{.sum_of_squares = 1, .largest = 0.1F}},
        .updates = {{.sum_of_squares = 4, .update_sum_of_squares = 1e-4, .largest = 0.3F}}});
  Step(3, kNotANumber);
  ASSERT_EQ(record.steps().size(), 3U);
  EXPECT_TRUE(record.steps()[0].update);
  EXPECT_EQ(record.reports().size(), said_.size());
  EXPECT_EQ(record.facts().tensors[0].name, "w");
}

TEST_F(RunWatchTest, GradientsAreUnscaledAndMeansOfTheirTensor) {
  Begin();
  const zero::StepFigures figures{.gradients = {{.sum_of_squares = 1600, .largest = 20}}};
  DoneStep done{.numbers = {.step = 1, .loss = 2.3, .grad_norm = 1, .loss_scale = 4, .lr = 0.1},
                .figures = figures};
  EXPECT_TRUE(watch_->AfterStep(done).ok());
  ASSERT_EQ(done.numbers.gradients.size(), 1U);
  EXPECT_EQ(done.numbers.gradients[0].rms, 1);
  EXPECT_EQ(done.numbers.gradients[0].largest, 5);
}

TEST_F(RunWatchTest, TheTimeOfAStepIsTheMedianOfTheLastOnes) {
  Begin();
  StepRow row;
  for (const double seconds : {1.0, 30.0, 2.0}) {
    row.step_s = seconds;
    EXPECT_TRUE(watch_->AfterRow(Closed(row)).ok());
  }
  DoneStep done = Doubting({});
  EXPECT_TRUE(watch_->AfterStep(done).ok());
  EXPECT_EQ(done.numbers.median_step_s, 2);
}

}  // namespace
}  // namespace penstock::train
