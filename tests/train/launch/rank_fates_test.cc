#include "train/launch/rank_fates.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

namespace penstock::train {
namespace {

using Order = RankFates::Order;
using std::chrono::seconds;

const RankFates::Time kBegin{};

Ending Exit(uint32_t rank, int code) { return {.rank = rank, .code = code}; }
Ending Kill(uint32_t rank, int signal) { return {.rank = rank, .signal = signal}; }

RankFates Started(int ranks) {
  RankFates fates({.terminate = seconds(5),
                   .kill = seconds(6),
                   .leave = seconds(7),
                   .one_request = seconds(2)});
  for (int i = 0; i < ranks; ++i) fates.Started();
  return fates;
}

TEST(Ending, TellsExitCodesFromSignals) {
  EXPECT_EQ(EndingOf(2, 3 << 8, false), Exit(2, 3));
  EXPECT_EQ(EndingOf(2, SIGKILL, false), Kill(2, SIGKILL));
  EXPECT_EQ(EndingOf(2, 255 << 8, false), Exit(2, 255));
}

TEST(Ending, SaysWhatHappened) {
  EXPECT_EQ(EndingText(Kill(0, SIGKILL)), "was killed by signal 9 (Killed)");
  EXPECT_EQ(EndingText({.signal = SIGTERM, .elsewhere = true}),
            "was killed by signal 15 (Terminated), or its ssh was");
  EXPECT_EQ(EndingText(Exit(0, 7)), "ended with exit code 7");
  EXPECT_NE(EndingText({.code = 255, .elsewhere = true}).find("connection"), std::string::npos);
  EXPECT_NE(EndingText({.code = 127, .elsewhere = true}).find("same path"), std::string::npos);
}

TEST(Ending, ASignalAndAFailureOfSshAreFailuresOfTheEnvironment) {
  EXPECT_EQ(ExitCodeOf(Kill(0, SIGSEGV)), 3);
  EXPECT_EQ(ExitCodeOf(Exit(0, 4)), 4);
  for (const int code : {126, 127, 255}) {
    EXPECT_EQ(ExitCodeOf({.code = code, .elsewhere = true}), 3);
    EXPECT_EQ(ExitCodeOf(Exit(0, code)), code);
  }
}

TEST(Ending, PenstocksCodesOfFailuresComeWithAReport) {
  for (const int code : {2, 3, 4}) EXPECT_TRUE(HasReported(Exit(0, code))) << code;
  for (const int code : {0, 1, 5, 127, 130, 255}) EXPECT_FALSE(HasReported(Exit(0, code))) << code;
  EXPECT_FALSE(HasReported(Kill(0, SIGKILL)));
}

TEST(RankFates, AllMayEndWhenTheyLike) {
  RankFates fates = Started(2);
  EXPECT_EQ(fates.Ended(std::vector{Exit(1, 0)}, kBegin), std::nullopt);
  EXPECT_EQ(fates.deadline(), std::nullopt);
  EXPECT_FALSE(fates.over());
  fates.Ended(std::vector{Exit(0, 0)}, kBegin + seconds(1000));
  EXPECT_TRUE(fates.over());
  EXPECT_EQ(fates.exit_code(), 0);
}

TEST(RankFates, AfterAFailureTheOthersAreEndedInThreeStages) {
  RankFates fates = Started(3);
  EXPECT_EQ(fates.Ended(std::vector{Exit(1, 4)}, kBegin), Exit(1, 4));
  EXPECT_EQ(fates.deadline(), kBegin + seconds(5));
  EXPECT_EQ(fates.Due(kBegin + seconds(4)), Order::kNone);
  EXPECT_EQ(fates.Due(kBegin + seconds(5)), Order::kTerminate);
  EXPECT_EQ(fates.Due(kBegin + seconds(5)), Order::kNone) << "each order is given once";
  EXPECT_EQ(fates.Ended(std::vector{Kill(2, SIGTERM)}, kBegin + seconds(6)), std::nullopt);
  EXPECT_EQ(fates.Due(kBegin + seconds(10)), Order::kNone);
  EXPECT_EQ(fates.Due(kBegin + seconds(11)), Order::kKill);
  EXPECT_FALSE(fates.over());
  EXPECT_EQ(fates.deadline(), kBegin + seconds(18));
  EXPECT_EQ(fates.Due(kBegin + seconds(18)), Order::kLeave);
  EXPECT_TRUE(fates.over());
  EXPECT_EQ(fates.deadline(), std::nullopt);
  EXPECT_EQ(fates.exit_code(), 4);
}

TEST(RankFates, ARankThatEndsInTimeGetsNoSignal) {
  RankFates fates = Started(2);
  fates.Ended(std::vector{Exit(1, 2)}, kBegin);
  fates.Ended(std::vector{Exit(0, 3)}, kBegin + seconds(1));
  EXPECT_TRUE(fates.over());
  EXPECT_EQ(fates.deadline(), std::nullopt);
  EXPECT_EQ(fates.Due(kBegin + seconds(100)), Order::kNone);
  EXPECT_EQ(fates.exit_code(), 2) << "of the first failure";
}

TEST(RankFates, OfFailuresThatAreFoundTogetherTheKilledRankIsTheFirst) {
  RankFates fates = Started(4);
  EXPECT_EQ(fates.Ended(std::vector{Exit(3, 0), Exit(0, 2), Kill(2, SIGKILL), Exit(1, 2)}, kBegin),
            Kill(2, SIGKILL));
  EXPECT_EQ(fates.exit_code(), 3);
  RankFates lowest = Started(2);
  EXPECT_EQ(lowest.Ended(std::vector{Exit(1, 2), Exit(0, 4)}, kBegin), Exit(0, 4));
}

TEST(RankFates, AKilledRankIsTheFirstFailureThoughOneThatNoticedItIsSeenBefore) {
  RankFates fates = Started(4);
  EXPECT_EQ(fates.Ended(std::vector{Exit(0, 3)}, kBegin), Exit(0, 3));
  EXPECT_EQ(fates.Ended(std::vector{Exit(1, 3)}, kBegin + seconds(1)), std::nullopt);
  EXPECT_EQ(fates.Ended(std::vector{Kill(2, SIGKILL)}, kBegin + seconds(2)), Kill(2, SIGKILL));
  EXPECT_EQ(fates.Ended(std::vector{Kill(3, SIGSEGV)}, kBegin + seconds(3)), std::nullopt);
  EXPECT_EQ(fates.deadline(), std::nullopt);
  EXPECT_EQ(fates.exit_code(), 3);
}

TEST(RankFates, AFailureThatNoOtherRankExplainsStaysTheFirst) {
  RankFates fates = Started(2);
  fates.Ended(std::vector{Exit(0, 4)}, kBegin);
  EXPECT_EQ(fates.Ended(std::vector{Kill(1, SIGKILL)}, kBegin), std::nullopt);
  EXPECT_EQ(fates.exit_code(), 4);
  RankFates elsewhere = Started(2);
  elsewhere.Ended(std::vector{Ending{.rank = 0, .code = 127, .elsewhere = true}}, kBegin);
  EXPECT_EQ(elsewhere.Ended(std::vector{Kill(1, SIGABRT)}, kBegin), std::nullopt)
      << "the shell's code says what to do";
  RankFates ended = Started(2);
  ended.Ended(std::vector{Exit(0, 3)}, kBegin);
  EXPECT_EQ(ended.Due(kBegin + seconds(5)), Order::kTerminate);
  EXPECT_EQ(ended.Ended(std::vector{Kill(1, SIGTERM)}, kBegin + seconds(5)), std::nullopt);
}

TEST(RankFates, AnInterruptionIsNoFailureAndNoRankIsHurried) {
  RankFates fates = Started(2);
  EXPECT_TRUE(fates.Interrupted(SIGINT, kBegin));
  EXPECT_EQ(fates.Ended(std::vector{Exit(1, 130)}, kBegin), std::nullopt);
  EXPECT_EQ(fates.deadline(), std::nullopt) << "a commit may take its time";
  fates.Ended(std::vector{Exit(0, 130)}, kBegin + seconds(1000));
  EXPECT_EQ(fates.exit_code(), 130);
}

TEST(RankFates, TheSignalOfTheUserMayKillRanksThatHaveNotBegun) {
  RankFates fates = Started(3);
  fates.Interrupted(SIGINT, kBegin);
  EXPECT_EQ(fates.Ended(std::vector{Exit(0, 3), Kill(2, SIGINT)}, kBegin), std::nullopt)
      << "rank 0 noticed that rank 2 was gone";
  fates.Ended(std::vector{Exit(1, 3)}, kBegin);
  EXPECT_EQ(fates.exit_code(), 130);
  RankFates other = Started(1);
  other.Interrupted(SIGINT, kBegin);
  EXPECT_EQ(other.Ended(std::vector{Kill(0, SIGKILL)}, kBegin), Kill(0, SIGKILL));
}

TEST(RankFates, SignalsThatComeTogetherAreOneRequestThatRanksGetOnce) {
  RankFates fates = Started(3);
  EXPECT_TRUE(fates.Interrupted(SIGTERM, kBegin));
  EXPECT_FALSE(fates.Interrupted(SIGTERM, kBegin + seconds(1)));
  EXPECT_FALSE(fates.Interrupted(SIGHUP, kBegin + seconds(1)));
  EXPECT_FALSE(fates.quitting());
  EXPECT_EQ(fates.deadline(), std::nullopt) << "a commit may take its time";
  EXPECT_EQ(fates.Ended(std::vector{Kill(2, SIGHUP)}, kBegin + seconds(1)), std::nullopt)
      << "a rank that had not begun got it from the same sender";
}

TEST(RankFates, AfterTheSecondRequestNoEndIsAFailure) {
  RankFates fates = Started(3);
  fates.Interrupted(SIGINT, kBegin);
  EXPECT_TRUE(fates.Interrupted(SIGINT, kBegin + seconds(2)));
  EXPECT_TRUE(fates.quitting());
  EXPECT_EQ(fates.Ended(std::vector{Exit(0, 3), Exit(1, 130)}, kBegin), std::nullopt);
  fates.Ended(std::vector{Exit(2, 0)}, kBegin);
  EXPECT_EQ(fates.exit_code(), 130);
}

TEST(RankFates, ARankThatDoesNotEndAfterTheSecondRequestIsEnded) {
  RankFates fates = Started(1);
  fates.Interrupted(SIGINT, kBegin);
  EXPECT_EQ(fates.deadline(), std::nullopt);
  const RankFates::Time again = kBegin + seconds(100);
  EXPECT_TRUE(fates.Interrupted(SIGINT, again));
  EXPECT_TRUE(fates.Interrupted(SIGINT, again + seconds(1))) << "and a further interruption counts";
  EXPECT_EQ(fates.Due(again + seconds(5)), RankFates::Order::kTerminate);
  EXPECT_EQ(fates.Due(again + seconds(11)), RankFates::Order::kKill);
  EXPECT_EQ(fates.Due(again + seconds(18)), RankFates::Order::kLeave);
  EXPECT_TRUE(fates.over());
  EXPECT_EQ(fates.exit_code(), 130);
}

TEST(RankFates, AnInterruptionAfterTheWorkChangesNothing) {
  RankFates fates = Started(1);
  fates.Interrupted(SIGTERM, kBegin);
  fates.Ended(std::vector{Exit(0, 0)}, kBegin);
  EXPECT_EQ(fates.exit_code(), 0);
}

TEST(RankFates, AFailureAfterAnInterruptionIsAFailure) {
  RankFates fates = Started(3);
  fates.Interrupted(SIGINT, kBegin);
  fates.Ended(std::vector{Exit(1, 130)}, kBegin);
  EXPECT_EQ(fates.Ended(std::vector{Exit(0, 3)}, kBegin), Exit(0, 3));
  EXPECT_EQ(fates.exit_code(), 3) << "the commit may have failed";
  EXPECT_EQ(fates.deadline(), kBegin + seconds(5));
}

TEST(RankFates, ARankThatIsInterruptedByOthersInterruptsAll) {
  RankFates fates = Started(2);
  EXPECT_EQ(fates.Ended(std::vector{Exit(1, 130)}, kBegin), std::nullopt);
  EXPECT_EQ(fates.Ended(std::vector{Exit(0, 130)}, kBegin), std::nullopt);
  EXPECT_EQ(fates.exit_code(), 130);
}

TEST(RankFates, IfARankCannotBeStartedTheOthersAreEndedAtOnce) {
  RankFates fates = Started(2);
  fates.NotStarted(kBegin);
  EXPECT_EQ(fates.Due(kBegin), Order::kTerminate);
  EXPECT_EQ(fates.Ended(std::vector{Kill(0, SIGTERM), Kill(1, SIGTERM)}, kBegin), std::nullopt);
  EXPECT_TRUE(fates.over());
  EXPECT_EQ(fates.exit_code(), 3);
  RankFates first = Started(0);
  first.NotStarted(kBegin);
  EXPECT_TRUE(first.over());
  EXPECT_EQ(first.exit_code(), 3);
}

}  // namespace
}  // namespace penstock::train
