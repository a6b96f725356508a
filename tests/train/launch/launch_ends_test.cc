// How a launch ends: with failures, signals, and ranks that do not end or cannot be started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/launch/launch_support.h"
#include "train/launch/launch_loop.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Waits until the launcher has taken note of the end of the rank that wrote the file "pid".
constexpr const char* kAwaitItsEnd =
    "await pid; while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done; ";
constexpr const char* kSayPid = "echo $$ > pid.new; mv pid.new pid; ";
/// As penstock's rank 0 reports the end of another one.
constexpr const char* kReport = "[ $RANK = 0 ] && echo 'penstock: error: rank ended' >&2; exit 3";

TEST_F(LaunchTest, TheFirstFailureGivesTheCodeAndRankZeroTheReason) {
  const Outcome outcome =
      Run(3, std::string("[ $RANK = 1 ] && { ") + kSayPid + "exit 4; }; " + kAwaitItsEnd + kReport);
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.err, "penstock: error: rank ended\n");
}

TEST_F(LaunchTest, WhatRankZeroCannotSayIsSaidByTheLauncher) {
  for (const auto& [how, text] : std::vector<std::pair<std::string, std::string>>{
           {"exit 7", "ended with exit code 7"},
           {"kill -9 $$", "was killed by signal 9 (Killed)"}}) {
    for (const bool reported : {false, true}) {
      ::unlink(temp_.Path("pid").c_str());
      const std::string rest = reported ? kReport : "exit 0";
      const Outcome outcome = Run(
          3, std::string("[ $RANK = 2 ] && { ") + kSayPid + how + "; }; " + kAwaitItsEnd + rest);
      EXPECT_EQ(outcome.code, how == "exit 7" ? 7 : 3);
      const std::string line = "rank 2 (pid " + LinesOf(temp_.Read("pid"))[0] + ") " + text;
      if (!reported) {
        EXPECT_EQ(outcome.err, "penstock: error: " + line + "\n");
      } else if (how == "exit 7") {
        EXPECT_EQ(outcome.err, "penstock: error: rank ended\n");
      } else {
        EXPECT_EQ(outcome.err, "penstock: error: rank ended\npenstock: " + line + "\n");
      }
    }
  }
}

TEST_F(LaunchTest, ARankThatDoesNotEndAfterAFailureGetsSigterm) {
  setting_.patience.terminate = kSoon;
  const Outcome outcome = Run(3, R"(
    [ $RANK = 2 ] && { await ready0; await ready1; exit 4; }
    trap "echo bye $RANK >&2; exit 130" TERM
    echo $$ > pid$RANK; : > ready$RANK; rest)");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              HasSubstr("penstock: ending rank 0 (pid " + LinesOf(temp_.Read("pid0"))[0] +
                        "), rank 1 (pid " + LinesOf(temp_.Read("pid1"))[0] +
                        "), still running (SIGTERM)\n"));
  EXPECT_THAT(outcome.err, HasSubstr("bye 0\n"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1: bye 1\n"));
}

TEST_F(LaunchTest, ARankThatDoesNotEndThenIsKilled) {
  setting_.patience.terminate = setting_.patience.kill = kSoon;
  const Outcome outcome = Run(2, R"(
    [ $RANK = 1 ] && { await ready; exit 4; }
    trap '' TERM; : > ready; rest)");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(LinesOf(outcome.err),
              ElementsAre(HasSubstr("ended with exit code 4"), HasSubstr("running (SIGTERM)"),
                          HasSubstr("running (SIGKILL)")))
      << "and that it was killed is no news";
}

TEST_F(LaunchTest, EverySignalGoesToEveryRankOnce) {
  const Outcome outcome = Run(3, std::string("LAUNCHER=$PPID; ") + kSignals);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0 ended"))) << "at the second signal it is no news";
  EXPECT_EQ(temp_.Read("got0"), "INT\nTERM\n");
  EXPECT_EQ(temp_.Read("got1"), "INT\nTERM\n");
}

TEST_F(LaunchTest, WhatARankLeavesRunningDoesNotKeepTheLaunch) {
  const Outcome outcome = Run(2, R"(
    [ $RANK = 0 ] && { sleep 1000 & echo $! > pid; }
    [ $RANK = 1 ] && { yes >&2 & }
    echo done >&2)");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("done\n"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1: done\n"));
  ::kill(std::stoi(temp_.Read("pid")), SIGKILL);  // "yes" ends as nobody reads
}

TEST_F(LaunchTest, AProgramThatCannotBeStartedIsAFailureOfTheEnvironment) {
  setting_.program = "/nonexistent/penstock";
  const Outcome outcome = Run(2, "");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err,
            "penstock: error: rank 0 cannot be started: starting /nonexistent/penstock: No such "
            "file or directory\n");
}

TEST_F(LaunchTest, ArgumentsThatTheKernelDoesNotTakeAreAFailureOfTheEnvironment) {
  const Outcome outcome = Run(2, std::string(200'000, ' '));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("Argument list too long"));
}

TEST_F(LaunchTest, RanksThatRunAreEndedIfAnotherOneCannotBeStarted) {
  const RankCommand first = {
      .rank = 0, .program = "/bin/sh", .arguments = {"sh", "-c", "sleep 1000"}};
  const RankCommand second = {.rank = 1, .program = "/nonexistent", .arguments = {"x"}};
  const Outcome outcome = Captured([&] { return RunRanks({first, second}, kEndless); });
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(LinesOf(outcome.err),
              ElementsAre(StartsWith("penstock: error: rank 1 cannot be started: "),
                          StartsWith("penstock: ending rank 0 (pid ")));
}

}  // namespace
}  // namespace penstock::train
