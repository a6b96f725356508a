#include "train/loop/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace penstock::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A FILE that keeps what is written to it.
class MemoryFile {
 public:
  MemoryFile() : file_(::open_memstream(&data_, &size_)) {}
  ~MemoryFile() {
    std::fclose(file_);
    std::free(data_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

void Close(Progress& progress, const StepRow& row) {
  EXPECT_TRUE(progress.AfterRow({.row = row, .samples = 0, .begin = {}, .end = {}}).ok());
}

StepRow Row(uint64_t step) {
  StepRow row;
  row.step = step;
  row.loss = 2.5;
  row.step_s = 2.0;
  row.tokens_per_s = 1024;
  row.nvme_read_bytes = 3'000'000'000;
  row.nvme_write_bytes = 1'000'000'000;
  return row;
}

TEST(ProgressLine, HasLossSpeedDriveAndRemainingTime) {
  EXPECT_EQ(ProgressLine(Row(10), 50, 2.0),
            "step 10/50  loss 2.5000  1024 tokens/s  nvme 2.00 GB/s  remaining 1:20");
  EXPECT_THAT(ProgressLine(Row(10), 5010, 2.0), HasSubstr("remaining 2:46:40"));
  EXPECT_THAT(ProgressLine(Row(50), 50, 2.0), HasSubstr("remaining 0:00"));
}

TEST(ProgressLine, SaysThatAStepWasSkipped) {
  StepRow row = Row(3);
  row.skipped = true;
  EXPECT_THAT(ProgressLine(row, 50, 1.0), HasSubstr("skipped"));
}

TEST(Progress, WithoutATerminalPrintsEveryNthStepAndTheLast) {
  MemoryFile out;
  Progress progress({.out = out.file(), .terminal = false, .every = 2, .last_step = 5});
  for (uint64_t step = 1; step <= 5; ++step) Close(progress, Row(step));
  const std::string text = out.text();
  EXPECT_THAT(text, Not(HasSubstr("step 1/")));
  EXPECT_THAT(text, HasSubstr("penstock: step 2/5"));
  EXPECT_THAT(text, Not(HasSubstr("step 3/")));
  EXPECT_THAT(text, HasSubstr("penstock: step 4/5"));
  EXPECT_THAT(text, HasSubstr("penstock: step 5/5"));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST(Progress, SaysWhatThePartsOfStepsTookSinceTheLastLine) {
  MemoryFile out;
  Progress progress(
      {.out = out.file(), .terminal = false, .every = 2, .breakdown = true, .last_step = 3});
  for (const double seconds : {0.25, 0.5, 1.0}) {
    StepRow row = Row(seconds == 0.25 ? 1 : seconds == 0.5 ? 2 : 3);
    row.forward_s = seconds;
    row.backward_s = 0.5;
    Close(progress, row);
  }
  EXPECT_THAT(out.text(), HasSubstr("forward 375.00 ms  backward 500.00 ms  step 1125.00 ms\n"));
  EXPECT_THAT(out.text(), HasSubstr("forward 1000.00 ms  backward 500.00 ms  step 500.00 ms\n"));
}

TEST(Progress, OnATerminalRewritesOneLineAndEndsIt) {
  MemoryFile out;
  {
    Progress progress({.out = out.file(), .terminal = true, .last_step = 5});
    Close(progress, Row(1));
    Close(progress, Row(2));
    EXPECT_THAT(out.text(), Not(HasSubstr("\n")));
  }
  const std::string text = out.text();
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kstep 1/5"));
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kstep 2/5"));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(Progress, EstimatesFromTheMeanOfItsSteps) {
  MemoryFile out;
  Progress progress({.out = out.file(), .terminal = true, .last_step = 12});
  StepRow row = Row(1);
  row.step_s = 1;
  Close(progress, row);
  row.step = 2;
  row.step_s = 5;
  Close(progress, row);
  EXPECT_THAT(out.text(), HasSubstr("remaining 0:30"));
}

TEST(ProgressBar, IsFullOnlyAtTheEnd) {
  EXPECT_EQ(ProgressBar(0), "[--------]");
  EXPECT_EQ(ProgressBar(0.5), "[####----]");
  EXPECT_EQ(ProgressBar(0.999), "[#######-]");
  EXPECT_EQ(ProgressBar(1), "[########]");
  EXPECT_EQ(ProgressBar(2), ProgressBar(1));
}

}  // namespace
}  // namespace penstock::train
