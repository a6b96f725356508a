#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/watch.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A watch over ranks that live, in a time of its own.
class WatchTest : public testing::Test {
 protected:
  static std::vector<Member> Members(uint32_t size) {
    std::vector<Member> members;
    for (uint32_t rank = 0; rank < size; ++rank) {
      members.push_back({.host = std::string(1, static_cast<char>('a' + rank)), .pid = 100 + rank});
    }
    return members;
  }

  /// Rank 0 watches the others.
  void Begin(uint32_t size, seconds heartbeat = seconds(30), seconds operation = seconds(600)) {
    size_ = size;
    watch_.emplace(Members(size), Watch::Limits{heartbeat, operation}, now_);
    for (uint32_t rank = 1; rank < size; ++rank) watch_->Alive(rank);
  }

  /// So many seconds pass, in each of which all but `silent` are heard. Returns the first verdict.
  std::string Pass(int ticks, const std::vector<uint32_t>& silent = {}) {
    for (int i = 0; i < ticks; ++i) {
      for (uint32_t rank = 1; rank < size_; ++rank) {
        if (std::find(silent.begin(), silent.end(), rank) == silent.end()) watch_->Alive(rank);
      }
      now_ += Watch::kTick;
      if (std::string verdict = Verdict(); !verdict.empty()) return verdict;
    }
    return {};
  }
  std::string Verdict() {
    const std::optional<Error> verdict = watch_->Judge(now_);
    return verdict.has_value() ? verdict->message : std::string();
  }

  static Operation Op(uint64_t step, uint32_t index) {
    return {.step = step, .index = index, .what = "weights of h." + std::to_string(index)};
  }
  void IsIn(uint32_t rank, const Operation& operation, const std::string& doing = "") {
    watch_->Heard(rank, {.enqueued = operation, .begun = operation, .doing = doing});
  }
  void HasEnded(uint32_t rank, const Operation& operation, const std::string& doing = "") {
    watch_->Heard(rank,
                  {.enqueued = operation, .begun = operation, .ended = operation, .doing = doing});
  }

  uint32_t size_ = 0;
  SteadyTime now_;
  std::optional<Watch> watch_;
};

TEST_F(WatchTest, RanksThatAreHeardOfLive) {
  Begin(3);
  EXPECT_EQ(Pass(10'000), "");
}

TEST_F(WatchTest, ASilentRankIsNamedWhenItsTimeIsOver) {
  Begin(3);
  EXPECT_EQ(Pass(100), "");
  EXPECT_EQ(Pass(29, {2}), "");
  EXPECT_EQ(Pass(1, {2}), "rank 2 (host c, pid 102) has not answered for 30 s");
}

TEST_F(WatchTest, ARankThatAnswersAgainLives) {
  Begin(2);
  EXPECT_EQ(Pass(30, {1}), "");
  EXPECT_EQ(Pass(1), "");
  EXPECT_EQ(Pass(29, {1}), "");
}

TEST_F(WatchTest, ARankThatNeverAnsweredIsNamedToo) {
  Begin(2, seconds(2));
  EXPECT_EQ(Pass(2, {1}), "");
  EXPECT_EQ(Pass(1, {1}), "rank 1 (host b, pid 101) has not answered for 2 s");
}

TEST_F(WatchTest, ARankThatWatchesRankZeroJudgesNoOther) {
  size_ = 1;
  watch_.emplace(Members(3), Watch::Limits{.heartbeat = seconds(2)}, now_);
  watch_->Alive(0);
  IsIn(0, Op(1, 1));
  EXPECT_EQ(Pass(2), "");
  EXPECT_EQ(Pass(1), "rank 0 (host a, pid 100) has not answered for 2 s");
}

TEST_F(WatchTest, ARankThatStoodStillDoesNotJudgeTheOthers) {
  Begin(2, seconds(5));
  EXPECT_EQ(Pass(5, {1}), "");
  now_ += seconds(3600);
  EXPECT_EQ(Verdict(), "");  // a sixth tick, and late: what rank 1 sent may not be read yet
  watch_->Alive(1);
  EXPECT_EQ(Pass(5, {1}), "");
}

TEST_F(WatchTest, AnHourOfStandingStillCountsAsOneTick) {
  Begin(2, seconds(5), seconds(10));
  IsIn(0, Op(1, 1));
  IsIn(1, Op(1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Pass(2), "");
    now_ += seconds(3600);
    EXPECT_EQ(Verdict(), "");
  }
}

TEST_F(WatchTest, AMachineThatIsAlwaysLateStillJudges) {
  Begin(2, seconds(5));
  for (int i = 0; i < 5; ++i) {
    now_ += seconds(4);
    EXPECT_EQ(Verdict(), "");
  }
  now_ += seconds(4);
  EXPECT_NE(Verdict(), "");
}

TEST_F(WatchTest, AClosedConnectionIsTheEndOfTheRank) {
  Begin(3);
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(), "rank 1 (host b, pid 101) ended");
}

TEST_F(WatchTest, TheEndSaysTheStepAndWhatTheRankDid) {
  Begin(2);
  watch_->Heard(1,
                {.enqueued = Op(12, 3), .begun = Op(11, 9), .doing = "waits for weights of h.3"});
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(),
            "rank 1 (host b, pid 101) ended in step 12 while it waits for weights of h.3");
  Begin(2);
  HasEnded(1, Op(0, 1));
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(), "rank 1 (host b, pid 101) ended before the first step");
}

TEST_F(WatchTest, ARankThatHasFinishedMayGo) {
  Begin(2);
  watch_->Closed(1, true);
  EXPECT_EQ(Verdict(), "");
  size_ = 1;
  EXPECT_EQ(Pass(1000), "");
}

TEST_F(WatchTest, TheFirstEndCounts) {
  Begin(3);
  watch_->Closed(2, false);
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(), "rank 2 (host c, pid 102) ended");
}

TEST_F(WatchTest, AnErrorIsBelievedHalfASecondLater) {
  Begin(3);
  watch_->Failed(2, {ErrorCode::kOutOfSpace, "no space"}, now_);
  watch_->Failed(1, {ErrorCode::kIo, "later"}, now_);
  EXPECT_EQ(Verdict(), "");
  EXPECT_EQ(watch_->due(), now_ + Watch::kFailureSettles);
  now_ = watch_->due();
  EXPECT_EQ(Verdict(), "rank 2 (host c): no space");
  EXPECT_EQ(watch_->Judge(now_)->code, ErrorCode::kOutOfSpace);
}

TEST_F(WatchTest, TheEndOfAnotherRankIsTheReasonOfAnError) {
  Begin(3);
  watch_->Failed(2, {ErrorCode::kIo, "connection reset"}, now_);
  now_ += milliseconds(100);
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(), "rank 1 (host b, pid 101) ended");
}

TEST_F(WatchTest, ARankThatSaidWhyAndEndedIsToBlameForWhatItSaid) {
  Begin(3);
  watch_->Failed(2, {ErrorCode::kIo, "drive is gone"}, now_);
  watch_->Failed(1, {ErrorCode::kIo, "rank 2 is gone"}, now_);
  watch_->Closed(2, false);
  watch_->Closed(1, false);
  EXPECT_EQ(Verdict(), "");
  now_ = watch_->due();
  EXPECT_EQ(Verdict(), "rank 2 (host c): drive is gone");
}

TEST_F(WatchTest, ARankThatDoesNotArriveIsNamedWithWhatItDoes) {
  Begin(3, seconds(30), seconds(60));
  IsIn(0, Op(12, 17));
  IsIn(2, Op(12, 17));
  HasEnded(1, Op(12, 16), "waits for weights of h.2: read of tile 40");
  EXPECT_EQ(Pass(60), "");
  EXPECT_EQ(Pass(1),
            "weights of h.17 (operation 17 of step 12): rank 1 (host b, pid 101) did not arrive "
            "within 60 s; rank 1 waits for weights of h.2: read of tile 40");
}

TEST_F(WatchTest, ARankThatHasBegunNothingDidNotArrive) {
  Begin(2, seconds(30), seconds(60));
  IsIn(0, Op(0, 0));
  EXPECT_EQ(Pass(61),
            "weights of h.0 (operation 0 before the first step): rank 1 (host b, pid 101) did not "
            "arrive within 60 s");
}

TEST_F(WatchTest, RankZeroThatHasBegunNothingDidNotArrive) {
  Begin(2, seconds(30), seconds(60));
  IsIn(1, Op(0, 0));
  EXPECT_EQ(Pass(61),
            "weights of h.0 (operation 0 before the first step): rank 0 (host a, pid 100) did not "
            "arrive within 60 s");
}

TEST_F(WatchTest, ARankThatIsAnOperationBehindIsNamedWithBoth) {
  Begin(8, seconds(30), seconds(60));
  for (uint32_t rank = 0; rank < 8; ++rank) IsIn(rank, Op(4, rank == 3 || rank == 5 ? 6 : 7));
  EXPECT_EQ(Pass(61),
            "rank 3 (host d, pid 103) is in weights of h.6 (operation 6 of step 4) and rank 0 "
            "(host a, pid 100) in weights of h.7 (operation 7 of step 4), for 60 s; missing are "
            "ranks 3, 5");
}

TEST_F(WatchTest, RanksInDifferentOperationsOfOneNumberAreNamed) {
  Begin(2, seconds(30), seconds(60));
  IsIn(0, {.step = 1, .index = 2, .what = "norm"});
  IsIn(1, {.step = 1, .index = 2, .what = "gradients"});
  EXPECT_EQ(Pass(61),
            "rank 1 (host b, pid 101) is in gradients (operation 2 of step 1) and rank 0 (host a, "
            "pid 100) in norm (operation 2 of step 1), for 60 s");
}

TEST_F(WatchTest, WhereAllArrivedTheNetworkIsToBlame) {
  Begin(2, seconds(30), seconds(60));
  IsIn(0, Op(4, 7));
  IsIn(1, Op(4, 7));
  EXPECT_EQ(Pass(61),
            "weights of h.7 (operation 7 of step 4): all ranks arrived, and it has not ended "
            "within 60 s: the network or the driver hangs");
}

TEST_F(WatchTest, WhereAllArrivedAndSomeLeftTheOthersAreNamed) {
  Begin(3, seconds(30), seconds(60));
  HasEnded(0, Op(4, 7));
  IsIn(1, Op(4, 7));
  HasEnded(2, Op(4, 7));
  EXPECT_EQ(Pass(61),
            "weights of h.7 (operation 7 of step 4): all ranks arrived, and it has not ended on "
            "rank 1 within 60 s: the network or the driver hangs");
}

TEST_F(WatchTest, OperationsThatEndInTimeAreNotStuck) {
  Begin(2, seconds(30), seconds(60));
  for (uint32_t index = 0; index < 20; ++index) {
    IsIn(0, Op(1, index));
    IsIn(1, Op(1, index));
    EXPECT_EQ(Pass(50), "");
    IsIn(0, Op(1, index));  // a heartbeat that says the same again
    EXPECT_EQ(Pass(10), "");
  }
  HasEnded(0, Op(1, 20));
  HasEnded(1, Op(1, 20));
  EXPECT_EQ(Pass(1000), "");
}

TEST_F(WatchTest, ARankThatDoesNotVoteIsNamedWithWhatItDoes) {
  Begin(3, seconds(30), seconds(60));
  watch_->Voted(0, 10);
  watch_->Voted(2, 10);
  watch_->Heard(1, {.doing = "waits for the commit of step 10"});
  EXPECT_EQ(Pass(60), "");
  EXPECT_EQ(
      Pass(1),
      "the commit of step 10: rank 1 (host b, pid 101) has not made its part within 60 s; rank "
      "1 waits for the commit of step 10");
}

TEST_F(WatchTest, SeveralThatDoNotVoteAreAllNamed) {
  Begin(4, seconds(30), seconds(60));
  watch_->Voted(2, 10);
  EXPECT_EQ(Pass(61),
            "the commit of step 10: rank 0 (host a, pid 100) has not made its part within 60 s; "
            "missing are ranks 0, 1, 3");
}

/// Rank 1 verifies its part of the commit, and the others wait in an operation, or for its vote.
TEST_F(WatchTest, ARankThatGetsOnIsNotStuckHoweverLongOthersWait) {
  for (const bool in_operation : {false, true}) {
    Begin(3, seconds(30), seconds(60));
    for (const uint32_t rank : {0, 2}) {
      watch_->Voted(rank, 10);
      if (in_operation) IsIn(rank, Op(11, 3));
    }
    for (uint64_t pieces = 1; pieces < 20; ++pieces) {
      watch_->Heard(1, {.pieces = pieces, .doing = "waits for the commit of step 10"});
      EXPECT_EQ(Pass(60), "");
    }
    watch_->Heard(1, {.pieces = 19, .doing = "waits for the commit of step 10"});
    EXPECT_EQ(Pass(1), in_operation
                           ? "weights of h.3 (operation 3 of step 11): rank 1 (host b, pid 101) "
                             "did not arrive within 60 s; rank 1 waits for the commit of step 10"
                           : "the commit of step 10: rank 1 (host b, pid 101) has not made its "
                             "part within 60 s; rank 1 waits for the commit of step 10");
  }
}

TEST_F(WatchTest, CommitsThatAreMadeInTimeAreNotStuck) {
  Begin(2, seconds(30), seconds(60));
  for (uint64_t step = 1; step < 20; ++step) {
    watch_->Voted(0, step);
    EXPECT_EQ(Pass(50), "");
    watch_->Voted(1, step);
    EXPECT_EQ(Pass(10), "");
  }
  EXPECT_EQ(Pass(1000), "");
}

}  // namespace
}  // namespace penstock::comm
