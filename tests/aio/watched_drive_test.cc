// When it is said that a drive does not answer, and by whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "aio/stall_watch.h"
#include "base/mutex.h"
#include "tests/aio/support.h"
#include "tests/deadline.h"

namespace penstock::aio {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A watch in virtual time, which is looked at often enough.
class StallWatchTest : public testing::Test {
 protected:
  void Submit(uint32_t slot) {
    watch_.Submitted({.offset = FileOffset{4096 * slot},
                      .data = buffer_.bytes(),
                      .slot = slot,
                      .request = &request_},
                     now_);
  }
  bool Return(uint32_t slot) { return watch_.Returned(slot, now_); }
  /// Lets time pass; returns what was said meanwhile.
  std::string Pass(seconds time) {
    std::string said;
    for (const StallWatch::Time end = now_ + time; now_ < end;) {
      now_ += seconds(1);
      said += watch_.Look(now_);
    }
    return said;
  }

  ScratchFile file_;
  Buffer buffer_{4096};
  Request request_{.file = &file_.get(), .buffer = buffer_.bytes(), .about = [] {
                     return std::string("record of tile 7");
                   }};
  StallWatch watch_{8, seconds(30), "io_uring"};
  StallWatch::Time now_{seconds(1000)};
};

TEST_F(StallWatchTest, TheOldestBlockIsNamedOnceWithHowManyHangWithIt) {
  Submit(3);
  EXPECT_THAT(Pass(seconds(2)), IsEmpty());
  Submit(1);
  Submit(2);
  EXPECT_THAT(Pass(seconds(27)), IsEmpty());
  Submit(4);
  EXPECT_EQ(Pass(seconds(1)),
            "the drive does not answer: read of 4096 bytes at offset 12288 of " + file_.path() +
                " (record of tile 7) has been with io_uring for 30 s; see the kernel log for the "
                "state of the drive; the wait continues");
  EXPECT_THAT(Pass(seconds(100)), IsEmpty());
}

TEST_F(StallWatchTest, BlocksThatHangTogetherAreCounted) {
  for (uint32_t slot = 0; slot < 3; ++slot) Submit(slot);
  EXPECT_THAT(Pass(seconds(30)),
              AllOf(HasSubstr("offset 0 of"), HasSubstr("for 30 s, and 2 more with it;")));
}

TEST_F(StallWatchTest, ADriveThatAnswersOtherBlocksIsNotCalledSilent) {
  Submit(1);
  std::string said;
  for (int i = 0; i < 30; ++i) {
    Submit(2);
    said += Pass(seconds(1));
    EXPECT_FALSE(Return(2));
  }
  EXPECT_THAT(said, AllOf(HasSubstr("does not answer, though it answers others: read of"),
                          HasSubstr("offset 4096 of"), Not(HasSubstr("more with it"))));
}

TEST_F(StallWatchTest, TheReturnOfTheNamedBlockIsSaidAndASecondStallToo) {
  for (int stall = 0; stall < 2; ++stall) {
    Submit(1);
    Submit(2);
    EXPECT_THAT(Pass(seconds(43)), HasSubstr("does not answer: read of 4096 bytes at offset 4096"));
    EXPECT_FALSE(Return(2)) << "another one was named";
    EXPECT_THAT(Pass(seconds(1)), IsEmpty());
    EXPECT_TRUE(Return(1));
    EXPECT_FALSE(Return(1)) << "there is nothing new to say";
    EXPECT_EQ(Pass(seconds(1)), "the drive answers again: read of 4096 bytes at offset 4096 of " +
                                    file_.path() + " (record of tile 7) ended after 44 s");
    EXPECT_THAT(Pass(seconds(100)), IsEmpty());
  }
}

TEST_F(StallWatchTest, BlocksThatReturnInTimeAreNotSpokenOf) {
  for (int i = 0; i < 20; ++i) {
    Submit(5);
    EXPECT_THAT(Pass(seconds(29)), IsEmpty());
    EXPECT_FALSE(Return(5));
  }
  EXPECT_THAT(Pass(seconds(100)), IsEmpty());
}

TEST_F(StallWatchTest, AProcessThatStoodStillDoesNotAccuseItsDrive) {
  EXPECT_THAT(Pass(seconds(1)), IsEmpty());
  Submit(1);
  now_ += seconds(3600);
  EXPECT_THAT(watch_.Look(now_), IsEmpty());
  EXPECT_FALSE(Return(1));
  EXPECT_THAT(Pass(seconds(100)), IsEmpty());
}

TEST(WatchedDrive, AnEngineSaysThatItsDriveDoesNotAnswerAndThatItDoesAgain) {
  ScratchFile file;
  Buffer buffer(4096);
  Mutex mutex;
  std::string said;  // guarded by mutex
  EngineOptions options{.simulate = SimulatedDrive{.latency_us = 200'000}};
  options.stall_after = milliseconds(20);
  options.on_stall = [&](const std::string& line) {
    MutexLock lock(mutex);
    said += line;
  };
  const auto engine = CreateEngine(options).value();
  // A look that comes late says nothing, so one request may not be enough.
  EXPECT_TRUE(BecomesTrue([&] {
    EXPECT_TRUE(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait().ok());
    MutexLock lock(mutex);
    return said.find("the drive answers again: write of 4096 bytes at offset 0 of " +
                     file.path()) != std::string::npos;
  }));
}

TEST(WatchedDrive, ATimeThatCannotPassIsRefused) {
  EngineOptions options;
  options.on_stall = [](const std::string&) {};
  options.stall_after = milliseconds(0);
  const auto engine = CreateEngine(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.error().message, HasSubstr("stall_after"));
}

}  // namespace
}  // namespace penstock::aio
