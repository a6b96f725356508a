#include "run/observers/row_files.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <optional>

#include "base/check.h"
#include "tests/run/observers/support.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

/// While it lives, no file grows beyond so many bytes.
class LargestFile {
 public:
  explicit LargestFile(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    PENSTOCK_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    PENSTOCK_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~LargestFile() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  LargestFile(const LargestFile&) = delete;
  LargestFile& operator=(const LargestFile&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int);
};

class RowFilesTest : public ::testing::Test {
 protected:
  RowFilesTest() {
    config_.csv_monitor = {.output_path = folder_.Path("out"), .job_name = "job"};
    rows_ = MetricsWriter::Create(folder_.Open(), "metrics.jsonl").value();
    curves_ = CsvMonitor::Create(config_).value();
  }

  static Status Append(RowFiles& files, uint64_t step) {
    const StepRow row = RowOfStep(step);
    return files.AfterRow(Closed(row));
  }
  std::string Rows() const { return folder_.Read("metrics.jsonl"); }
  std::string Rates() const { return folder_.Read("out/job/Train_Samples_lr.csv"); }

  const TempFolder folder_;
  config::Config config_;
  std::optional<MetricsWriter> rows_;
  std::optional<CsvMonitor> curves_;
};

TEST_F(RowFilesTest, EachStepHasARowAndAPointOfEachCurve) {
  RowFiles files(*rows_, &*curves_);
  ASSERT_TRUE(Append(files, 1).ok());
  ASSERT_TRUE(Append(files, 2).ok());
  EXPECT_TRUE(files.SyncRows().ok());
  EXPECT_EQ(Rows(), ToJson(RowOfStep(1)) + "\n" + ToJson(RowOfStep(2)) + "\n");
  EXPECT_EQ(Rates(), "step,lr\r\n8,0.001\r\n16,0.002\r\n");
}

TEST_F(RowFilesTest, CurvesAreWrittenWhereTheyWereAskedForAlone) {
  RowFiles files(*rows_, nullptr);
  ASSERT_TRUE(Append(files, 1).ok());
  EXPECT_TRUE(files.SyncRows().ok());
  EXPECT_EQ(Rows(), ToJson(RowOfStep(1)) + "\n");
  EXPECT_EQ(Rates(), "step,lr\r\n");
}

TEST_F(RowFilesTest, AStepWhoseRowFailedIsGivenAgainAndHasOneOfEach) {
  RowFiles files(*rows_, &*curves_);
  {
    const LargestFile small(100);  // of a curve, but not of a row
    EXPECT_FALSE(Append(files, 1).ok());
    EXPECT_EQ(Rates(), "step,lr\r\n8,0.001\r\n");
    EXPECT_EQ(Rows(), "");
  }
  ASSERT_TRUE(Append(files, 1).ok());
  EXPECT_EQ(Rates(), "step,lr\r\n8,0.001\r\n");
  EXPECT_EQ(Rows(), ToJson(RowOfStep(1)) + "\n");
}

TEST_F(RowFilesTest, AStepWhoseCurveFailedHasNoRowEither) {
  for (uint64_t step = 1; step <= 100; ++step) {
    const StepRow row = RowOfStep(step);
    ASSERT_TRUE(curves_->Append(row, 8 * step).ok());
  }
  RowFiles files(*rows_, &*curves_);
  {
    const LargestFile as_large_as_the_curve(Rates().size());
    EXPECT_FALSE(Append(files, 101).ok());
    EXPECT_EQ(Rows(), "");
  }
  ASSERT_TRUE(Append(files, 101).ok());
  EXPECT_THAT(Rates(), HasSubstr("\r\n808,0.101\r\n"));
  StepRow first = RowOfStep(101);
  first.previous_row = 0;  // the file has none
  EXPECT_EQ(Rows(), ToJson(first) + "\n");
}

}  // namespace
}  // namespace penstock::train
