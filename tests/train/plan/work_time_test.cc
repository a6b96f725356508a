#include "train/plan/work_time.h"

#include <gtest/gtest.h>

namespace penstock::train {
namespace {

/// Rounds as a busy machine has them, then quiet ones.
WorkSpan Round(int call, int busy) {
  WorkSpan span;
  span.end.time = span.begin.time + std::chrono::milliseconds(call <= busy ? 5000 : 4000);
  span.end.processor_s = call <= busy ? 3 : 3.5;
  return span;
}

TEST(WorkTimeTest, WaitingForAProcessorDoesNotCount) {
  int calls = 0;
  WorkTime time;
  EXPECT_EQ(*time.Of([&]() -> Result<WorkSpan> { return Round(++calls, 2); }), 3.5);
  EXPECT_EQ(calls, 1 + 1 + 4) << "the first does not count, and four are not interrupted";
  EXPECT_FALSE(time.interrupted());
}

TEST(WorkTimeTest, AMachineThatIsAlwaysBusyEndsIt) {
  int calls = 0;
  WorkTime time;
  EXPECT_EQ(*time.Of([&]() -> Result<WorkSpan> { return Round(++calls, 1000); }), 3);
  EXPECT_EQ(calls, 13);
  EXPECT_TRUE(time.interrupted());
}

TEST(WorkTimeTest, AFailureEndsIt) {
  int calls = 0;
  WorkTime time;
  const Result<double> time_of = time.Of([&]() -> Result<WorkSpan> {
    if (++calls < 3) return Round(calls, 0);
    return MakeError(ErrorCode::kIo, "no more");
  });
  ASSERT_FALSE(time_of.ok());
  EXPECT_EQ(time_of.error().message, "no more");
  EXPECT_EQ(calls, 3);
}

TEST(WorkTimeTest, AnInstantIsThatOfItsThread) {
  const WorkInstant before = WorkInstant::Now();
  const WorkInstant after = WorkInstant::Now();
  EXPECT_LE(before.time, after.time);
  EXPECT_LE(before.processor_s, after.processor_s);
  EXPECT_LE(before.interruptions, after.interruptions);
}

}  // namespace
}  // namespace penstock::train
