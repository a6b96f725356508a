#include "run/rows/csv_monitor.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "base/folder.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kLoss = "out/job/Train_Samples_train_loss.csv";
constexpr const char* kLr = "out/job/Train_Samples_lr.csv";
constexpr const char* kScale = "out/job/Train_Samples_loss_scale.csv";

/// A run of 8 rows a step, each of 4 tokens.
class CsvMonitorTest : public testing::Test {
 protected:
  CsvMonitorTest() {
    config_.csv_monitor = {.output_path = folder_.Path("out"), .job_name = "job"};
  }

  static StepRow RowOf(uint64_t step) {
    StepRow row;
    row.step = step;
    row.loss = 10.0 / static_cast<double>(step);
    row.lr = 0.001 * static_cast<double>(step);
    row.tokens = 32;
    row.step_s = 1;
    return row;
  }
  static void Append(CsvMonitor& monitor, uint64_t step) {
    ASSERT_TRUE(monitor.Append(RowOf(step), 8 * step).ok());
  }
  CsvMonitor New() { return CsvMonitor::Create(config_).value(); }
  static CsvMonitor::Position At(uint64_t step) {
    return {
        .samples = 8 * step, .sequence = 4, .row = step == 0 ? std::string() : ToJson(RowOf(step))};
  }
  Result<CsvMonitor> Resumed(uint64_t step) {
    return CsvMonitor::Resume(config_, At(step), [](const std::string&) {});
  }

  TempFolder folder_;
  config::Config config_;
};

TEST_F(CsvMonitorTest, WritesDeepSpeedsFiles) {
  CsvMonitor monitor = New();
  Append(monitor, 1);
  Append(monitor, 2);
  EXPECT_TRUE(monitor.Sync().ok());
  EXPECT_EQ(folder_.Read(kLoss), "step,train_loss\r\n8,10\r\n16,5\r\n");
  EXPECT_EQ(folder_.Read(kLr), "step,lr\r\n8,0.001\r\n16,0.002\r\n");
  EXPECT_THAT(folder_.List("out/job"),
              ElementsAre("Train_Samples_lr.csv", "Train_Samples_train_loss.csv"));
}

TEST_F(CsvMonitorTest, AStepThatIsGivenTwiceHasOneLine) {
  CsvMonitor monitor = New();
  Append(monitor, 1);
  Append(monitor, 1);
  EXPECT_EQ(folder_.Read(kLr), "step,lr\r\n8,0.001\r\n");
  CsvMonitor resumed = Resumed(1).value();
  Append(resumed, 1);
  EXPECT_EQ(folder_.Read(kLr), "step,lr\r\n8,0.001\r\n");
}

TEST_F(CsvMonitorTest, TheLossScaleAndTheTimesHaveFilesWhereThereAreAny) {
  config_.loss_scaling.emplace();
  config_.wall_clock_breakdown = true;
  CsvMonitor monitor = New();
  StepRow row = RowOf(1);
  row.loss = std::numeric_limits<double>::quiet_NaN();
  row.loss_scale = 65536;
  row.forward_s = 0.25;
  row.backward_s = 0.5;
  ASSERT_TRUE(monitor.Append(row, 8).ok());
  EXPECT_EQ(folder_.Read(kScale), "step,loss_scale\r\n8,65536\r\n");
  EXPECT_EQ(folder_.Read(kLoss), "step,train_loss\r\n8,nan\r\n");
  const auto times = [this](const std::string& part) {
    return folder_.Read("out/job/Train_Samples_elapsed_time_ms_" + part + ".csv");
  };
  EXPECT_EQ(times("forward"), "step,elapsed_time_ms_forward\r\n8,250\r\n");
  EXPECT_EQ(times("backward"), "step,elapsed_time_ms_backward\r\n8,500\r\n");
  EXPECT_EQ(times("step"), "step,elapsed_time_ms_step\r\n8,250\r\n");
}

TEST_F(CsvMonitorTest, AResumedRunHasTheLinesOfOneThatWasNotStopped) {
  {
    CsvMonitor whole = New();
    for (uint64_t step = 1; step <= 4; ++step) Append(whole, step);
  }
  const std::string loss = folder_.Read(kLoss);
  const std::string lr = folder_.Read(kLr);
  // Killed after any step, with a commit of any step before it or of the next one; and a torn line.
  for (uint64_t written = 0; written <= 4; ++written) {
    for (uint64_t committed = 0; committed <= std::min<uint64_t>(written + 1, 4); ++committed) {
      std::filesystem::remove_all(folder_.Path("out"));
      {
        CsvMonitor killed = New();
        for (uint64_t step = 1; step <= written; ++step) Append(killed, step);
      }
      folder_.Write(kLr, folder_.Read(kLr) + std::to_string(8 * written + 8) + ",0.0");
      Result<CsvMonitor> resumed = Resumed(committed);
      ASSERT_TRUE(resumed.ok()) << resumed.error().message;
      for (uint64_t step = committed + 1; step <= 4; ++step) Append(*resumed, step);
      EXPECT_EQ(folder_.Read(kLoss), loss) << written << " " << committed;
      EXPECT_EQ(folder_.Read(kLr), lr) << written << " " << committed;
    }
  }
}

TEST_F(CsvMonitorTest, FilesThatWereMovedAwayBeginWithTheCommittedStep) {
  CsvMonitor resumed = Resumed(3).value();
  Append(resumed, 4);
  EXPECT_EQ(folder_.Read(kLr), "step,lr\r\n24,0.003\r\n32,0.004\r\n");
}

TEST_F(CsvMonitorTest, DamageBeforeTheCommitIsNamedAndLeftAsItIs) {
  const std::string damaged = "step,lr\r\n8,0.001\r\nx\r\n24,0.003\r\n";
  folder_.Write(kLr, damaged);
  const Result<CsvMonitor> resumed = Resumed(3);
  ASSERT_FALSE(resumed.ok());
  EXPECT_EQ(resumed.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(resumed.error().message,
              HasSubstr("Train_Samples_lr.csv, line 3: csv_monitor did not write this"));
  EXPECT_EQ(folder_.Read(kLr), damaged);
  // Everything after the commit is cut.
  EXPECT_TRUE(Resumed(1).ok());
  folder_.Write(kLr, "time,lr\n8,0.001\n");
  EXPECT_FALSE(Resumed(1).ok());
}

TEST_F(CsvMonitorTest, WhatIsNoFileIsCalledThatAndNotLinesOfAnotherRun) {
  ASSERT_TRUE(MakeFolders(folder_.Path("out/job")).ok());
  ASSERT_EQ(::mkfifo(folder_.Path(kLr).c_str(), 0600), 0);
  const Status refused = CsvMonitor::CheckFree(config_);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("Train_Samples_lr.csv is a pipe"));
}

TEST_F(CsvMonitorTest, RowsOfACallerTakeThePlaceOfLinesOfOtherSteps) {
  {
    CsvMonitor others = New();
    for (const uint64_t step : {1, 2}) Append(others, step);
  }
  const StepRow row = {.step = 1, .loss = 0.5, .lr = 0.25, .samples = 8};
  const CsvMonitor::Position position = {.samples = 8, .row = ToJson(row), .rows = {ToJson(row)}};
  ASSERT_TRUE(CsvMonitor::Resume(config_, position, [](const std::string&) {}).ok());
  EXPECT_EQ(folder_.Read(kLoss), "step,train_loss\r\n8,0.5\r\n");
  EXPECT_EQ(folder_.Read(kLr), "step,lr\r\n8,0.25\r\n");
}

TEST_F(CsvMonitorTest, ANewRunTakesNoLinesOfAnotherForItsOwn) {
  EXPECT_TRUE(CsvMonitor::CheckFree(config_).ok());
  {
    CsvMonitor other = New();
    EXPECT_TRUE(CsvMonitor::CheckFree(config_).ok()) << "headers alone belong to no run";
    Append(other, 1);
  }
  const Status refused = CsvMonitor::CheckFree(config_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("give another csv_monitor.job_name"));
  EXPECT_FALSE(CsvMonitor::Create(config_).ok());
  config_.csv_monitor->job_name = "other";
  EXPECT_TRUE(CsvMonitor::Create(config_).ok());
  config_.csv_monitor.reset();
  EXPECT_TRUE(CsvMonitor::CheckFree(config_).ok());
}

}  // namespace
}  // namespace penstock::train
