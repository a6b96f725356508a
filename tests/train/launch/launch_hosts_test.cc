// Ranks that penstock launch starts on several hosts, all of them this one, by a stand-in for ssh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/train/launch/launch_support.h"
#include "train/launch/launch.h"
#include "train/launch/meeting_port.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

TEST_F(LaunchTest, RanksOnOtherHostsAreStartedBySsh) {
  UseHosts("worker1 slots=1\nlocalhost slots=1\nworker2 slots=2\n");
  command_.ranks = 4;
  const std::string script =
      "echo $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT \"$(pwd)\" \"$*\" >&2";
  command_.arguments = {"-c", script, "sh", "it's", "two words"};
  const Outcome outcome = Captured([this] { return RunLaunch(command_, setting_); });
  EXPECT_EQ(outcome.code, 0);
  const std::string rest = " worker1:29500 " + temp_.Path() + " it's two words";
  EXPECT_THAT(LinesOf(outcome.err),
              UnorderedElementsAre("0 0/1" + rest, "rank 1: 1 0/1" + rest, "rank 2: 2 0/2" + rest,
                                   "rank 3: 3 1/2" + rest));
  EXPECT_THAT(LinesOf(temp_.Read("called")),
              UnorderedElementsAre("-T worker1", "-T worker2", "-T worker2"));
}

TEST_F(LaunchTest, AllRanksShareATokenThatNoCommandLineHoldsAndNoOtherLaunchHas) {
  UseHosts("worker1 slots=1\nlocalhost slots=1\n");
  const Variable of_another("PENSTOCK_JOB_TOKEN", "of another launch");
  const std::string script =
      "echo \"$PENSTOCK_JOB_TOKEN\" > token$RANK; "
      "tr '\\0' ' ' < /proc/$PPID/cmdline >> lines; "
      "tr '\\0' ' ' < /proc/$$/cmdline >> lines";
  std::vector<std::string> tokens;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Run(2, script).code, 0);
    const std::string token = LinesOf(temp_.Read("token0")).at(0);
    EXPECT_EQ(token.size(), 32U);
    EXPECT_EQ(temp_.Read("token1"), token + "\n");
    EXPECT_THAT(temp_.Read("lines") + temp_.Read("words"), Not(HasSubstr(token)));
    tokens.push_back(token);
  }
  EXPECT_NE(tokens[0], tokens[1]);
}

TEST_F(LaunchTest, SignalsReachRanksOnOtherHostsOnce) {
  UseHosts("worker1 slots=2\nworker2 slots=1\n");
  const Outcome outcome = Run(3, "LAUNCHER=" + std::to_string(::getpid()) + "; " + kSignals);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(temp_.Read("got0"), "INT\nTERM\n");
  EXPECT_EQ(temp_.Read("got1"), "INT\nTERM\n");
}

TEST_F(LaunchTest, ASignalToAllProcessesOfThisHostDoesNotCutOffRanksOnOthers) {
  UseHosts("worker1 slots=1\n",
           std::string("for signal in INT TERM HUP; do kill -s $signal $$; done\n") + kStandIn);
  const Outcome outcome = Run(1, "echo done");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "done\n");
}

TEST_F(LaunchTest, RanksOnOtherHostsAreEndedAfterAFailure) {
  setting_.patience.terminate = setting_.patience.kill = kSoon;
  UseHosts("worker1 slots=1\nworker2 slots=1\n");
  const Outcome outcome = Run(2, R"([ $RANK = 1 ] && { await ready; exit 4; }
    trap '' TERM; : > ready; rest)");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(LinesOf(outcome.err),
              ElementsAre("penstock: error: rank 1 (on worker2) ended with exit code 4",
                          "penstock: ending rank 0 (on worker1), still running (SIGTERM)",
                          "penstock: ending rank 0 (on worker1), still running (SIGKILL)"));
}

TEST_F(LaunchTest, AConnectionThatHangsDoesNotKeepTheLaunch) {
  setting_.patience = {.terminate = kSoon, .kill = kSoon, .leave = kSoon};
  UseHosts("worker1 slots=1\nworker2 slots=1\n", R"(
    case "$*" in *"-T worker1 "*) sleep 1000 ;; *) exit 255 ;; esac)");
  const Outcome outcome = Run(2, "");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (on worker2) ended with ssh's exit code 255"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 (on worker1) cannot be killed and may still run"));
}

TEST_F(LaunchTest, OneSignalEndsALaunchWhoseConnectionHangs) {
  setting_.patience = kEndless;
  setting_.patience.terminate = std::chrono::seconds(1);  // ample for a shell to read
  UseHosts("worker1 slots=1\nworker2 slots=1\n", R"(
    case "$*" in *"-T worker1 "*) until [ -e ready ]; do sleep 0.01; done
      kill -TERM )" + std::to_string(::getpid()) + "; exec sleep 1000 ;; esac\n" +
                                                     kStandIn);
  const Outcome outcome = Run(2, "trap 'exit 130' TERM; : > ready; rest");
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(LinesOf(outcome.err),
            std::vector<std::string>{"penstock: ending the connection to rank "
                                     "0 (on worker1), which hangs"});
}

TEST_F(LaunchTest, OtherHostsNeedAnAddressOfRankZeroThatIsNotTheirOwn) {
  UseHosts("localhost slots=1\nworker2 slots=1\n");
  command_.ranks = 2;
  EXPECT_TRUE(FailsWith(RunLaunch(command_, setting_), ErrorCode::kInvalidArgument,
                        {"localhost means another host on worker2", "first line"}));
  command_.master_port = MeetingPort::Hold(0)->number();
  EXPECT_EQ(Run(1, "echo $MASTER_ADDR").out, "localhost\n") << "nobody else looks for it";
}

TEST_F(LaunchTest, AHostfileThatIsMissingIsNamed) {
  command_.hostfile = temp_.Path("none");
  EXPECT_TRUE(FailsWith(RunLaunch(command_, setting_), ErrorCode::kNotFound,
                        {"--hostfile", temp_.Path("none")}));
}

}  // namespace
}  // namespace penstock::train
