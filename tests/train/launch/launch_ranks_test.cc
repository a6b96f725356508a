#include "train/launch/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/temp_folder.h"
#include "train/launch/launch_loop.h"
#include "train/launch/meeting_port.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

/// A test that waits for it hangs.
constexpr std::chrono::hours kForEver{1};
constexpr std::chrono::milliseconds kSoon{20};
/// Whoever does not end by himself is not ended. Every signal is a request of its own.
constexpr Patience kEndless = {
    .terminate = kForEver, .kill = kForEver, .leave = kForEver, .one_request = {}};

/// What scripts of ranks use: `await FILE` waits until another rank has made it; `rest` waits for
/// signals.
constexpr const char* kPrelude = R"(
await() { until [ -e "$1" ]; do sleep 0.01; done; }
rest() { while :; do sleep 0.01; done; }
)";

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Has a standard descriptor go into a file.
class Redirection {
 public:
  Redirection(int fd, const std::string& path) : fd_(fd), saved_(::fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    const UniqueFd file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
    PENSTOCK_CHECK(saved_.valid() && ::dup2(file.get(), fd) == fd);
  }
  ~Redirection() { ::dup2(saved_.get(), fd_); }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  int fd_;
  UniqueFd saved_;
};

/// Sets a variable of the environment. No other thread exists. NOLINTBEGIN(concurrency-mt-unsafe)
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = ::getenv(name_.c_str()); before != nullptr) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_.has_value()) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};
// NOLINTEND(concurrency-mt-unsafe)

/// Ranks are shells that run a script in a folder of the test's own.
class LaunchTest : public testing::Test {
 protected:
  struct Outcome {
    int code = -1;
    std::string out;
    std::string err;
  };

  void SetUp() override {
    ASSERT_EQ(::chdir(temp_.Path().c_str()), 0);
    std::signal(SIGPIPE, SIG_IGN);  // as the program has it
    setting_.program = "/bin/sh";
    setting_.patience = kEndless;
  }
  void TearDown() override { ASSERT_EQ(::chdir("/"), 0); }

  /// Runs `launch` while what goes to stdout and stderr goes into the files "out" and "err".
  Outcome Captured(const std::function<Result<int>()>& launch) {
    const Redirection out(STDOUT_FILENO, temp_.Path("out"));
    const Redirection err(STDERR_FILENO, temp_.Path("err"));
    const Result<int> code = launch();
    return {.code = code.ok() ? *code : -1, .out = temp_.Read("out"), .err = temp_.Read("err")};
  }

  Outcome Run(uint32_t ranks, const std::string& script) {
    command_.ranks = ranks;
    command_.arguments = {"-c", kPrelude + script};
    return Captured([this] { return RunLaunch(command_, setting_); });
  }

  /// Puts the ranks on hosts that a script of ours reaches in ssh's place.
  void UseHosts(const std::string& hostfile, const std::string& ssh = kStandIn) {
    command_.hostfile = temp_.Write("hosts", hostfile);
    temp_.Write("bin/ssh", "#!/bin/sh\n" + ssh);
    ASSERT_EQ(::chmod(temp_.Path("bin/ssh").c_str(), 0700), 0);
  }

  /// Runs the command here, with the signals that sshd gives it. The words before it are in the
  /// file "called".
  static constexpr const char* kStandIn =
      "echo \"$*\" | head -1 | cut -d ' ' -f 1-4 >> called; for word; do command=$word; done; "
      "exec env --default-signal sh -c \"$command\"\n";

  TempFolder temp_;
  Variable path_{"PATH", temp_.Path("bin") + ":/usr/bin:/bin"};
  LaunchCommand command_;
  LaunchSetting setting_;
};

TEST_F(LaunchTest, EveryRankKnowsWhoItIsAndWhereAllMeet) {
  const Outcome outcome =
      Run(3,
          "echo $MASTER_PORT > port$RANK; "
          "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR >&2");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(LinesOf(outcome.err),
              UnorderedElementsAre("0/3 0/3 127.0.0.1", "rank 1: 1/3 1/3 127.0.0.1",
                                   "rank 2: 2/3 2/3 127.0.0.1"));
  const std::string port = temp_.Read("port0");
  EXPECT_GT(std::stoi(port), 0);
  EXPECT_EQ(temp_.Read("port1"), port);
  EXPECT_EQ(temp_.Read("port2"), port);
}

TEST_F(LaunchTest, ThePortToMeetAtCanBeGiven) {
  const uint16_t port = MeetingPort::Hold(0)->number();  // which is free again
  command_.master_port = port;
  EXPECT_EQ(Run(2, "echo $MASTER_PORT").out, std::to_string(port) + "\n");
}

TEST_F(LaunchTest, WhatAnotherLauncherLeftIsGoneAndTheRestIsThere) {
  const Variable mpi("OMPI_COMM_WORLD_SIZE", "7");
  const Variable slurm("SLURM_PROCID", "7");
  const Variable other("PENSTOCK_LAUNCH_TEST", "kept");
  const Outcome outcome = Run(1, "env | grep -c '^OMPI_\\|^SLURM_'; echo $PENSTOCK_LAUNCH_TEST");
  EXPECT_EQ(outcome.out, "0\nkept\n");
}

TEST_F(LaunchTest, RanksReadNothingAndHaveNoDescriptorsOfTheLauncher) {
  // Whoever started this test may have left it some.
  int inherited = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++inherited;
  }
  const Outcome outcome = Run(2, "cat; ls /proc/self/fd | wc -l");
  EXPECT_EQ(outcome.out, std::to_string(4 + inherited) + "\n")
      << "the standard ones, and the folder that is listed";
}

TEST_F(LaunchTest, RanksGetSignalsThatWhoeverStartedTheLauncherIgnores) {
  std::signal(SIGINT, SIG_IGN);    // as a shell's background commands have it
  setting_.program = "/bin/grep";  // a shell would change what it finds
  command_.arguments = {"^Sig[BI]", "/proc/self/status"};
  const std::vector<std::string> lines =
      LinesOf(Captured([this] { return RunLaunch(command_, setting_); }).out);
  std::signal(SIGINT, SIG_DFL);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], "SigBlk:\t0000000000000000");
  const uint64_t ignored = std::stoull(lines[1].substr(lines[1].find('\t') + 1), nullptr, 16);
  for (const int signal : {SIGINT, SIGTERM, SIGTSTP, SIGCHLD, SIGPIPE, SIGXFSZ}) {
    EXPECT_EQ(ignored >> (signal - 1) & 1, 0U) << signal;
  }
}

TEST_F(LaunchTest, BytesOfRankZeroArriveAsTheyAre) {
  const Outcome outcome =
      Run(2, R"([ $RANK = 1 ] || { printf 'a\000\377b\n\nc'; printf 'd\377\n\ne' >&2; })");
  EXPECT_EQ(outcome.out, std::string("a\0\xff"
                                     "b\n\nc",
                                     7));
  EXPECT_EQ(outcome.err, "d\xff\n\ne");
}

TEST_F(LaunchTest, NothingIsLostHoweverMuchItIsAndHoweverLateItComes) {
  const Outcome outcome = Run(3, R"(
    i=0; while [ $i -lt 5000 ]; do echo "line $i of a rank that writes a lot"; i=$((i+1)); done >&2
    if [ $RANK = 0 ]; then echo end; else printf end; fi >&2)");
  EXPECT_EQ(outcome.code, 0);
  std::vector<std::string> expected;
  for (int i = 0; i < 5000; ++i) {
    expected.push_back("line " + std::to_string(i) + " of a rank that writes a lot");
  }
  expected.emplace_back("end");
  std::array<std::vector<std::string>, 3> of_rank;
  for (const std::string& line : LinesOf(outcome.err)) {
    const bool is_other = line.starts_with("rank ");
    of_rank.at(is_other ? line.at(5) - '0' : 0).push_back(is_other ? line.substr(8) : line);
  }
  for (const auto& lines : of_rank) EXPECT_EQ(lines, expected);
}

TEST_F(LaunchTest, RankZeroSpeaksForAll) {
  const Outcome outcome = Run(4, R"(
    [ $RANK = 0 ] && { await said1; await said2; await said3; }
    echo "table $RANK"; echo "penstock: a notice" >&2; : > said$RANK)");
  EXPECT_EQ(outcome.out, "table 0\n");
  EXPECT_THAT(LinesOf(outcome.err), UnorderedElementsAre("penstock: a notice", "rank 1: table 1",
                                                         "rank 2: table 2", "rank 3: table 3"));
}

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

TEST_F(LaunchTest, WhoeverDoesNotEndAfterAFailureIsAskedTo) {
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

TEST_F(LaunchTest, WhoeverDoesNotEndThenIsKilled) {
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

/// Ranks 0 and 1 write down what signals they get and end at SIGTERM; rank 2 sends the launcher one
/// signal, and when both have it, another one.
constexpr const char* kSignals = R"(
  [ $RANK = 2 ] && {
    trap : INT; trap 'exit 130' TERM
    await ready0; await ready1; kill -INT $LAUNCHER
    await got0; await got1; kill -TERM $LAUNCHER; rest
  }
  trap 'echo INT >> got$RANK' INT
  trap 'echo TERM >> got$RANK; [ $RANK = 0 ] || echo "rank 0 ended"; exit 130' TERM
  : > ready$RANK; rest)";

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

TEST_F(LaunchTest, ARankMayCloseItsOutput) {
  const Outcome outcome =
      Run(2, "exec >&- 2>&-; : > closed$RANK; await closed0; await closed1; exit $RANK");
  EXPECT_EQ(outcome.code, 1);
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

TEST_F(LaunchTest, AReaderThatIsGoneCostsNothing) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  const UniqueFd closed(ends[1]);
  const Outcome outcome = Captured([&] {
    ::dup2(closed.get(), STDERR_FILENO);
    command_.ranks = 3;
    command_.arguments = {"-c", "[ $RANK = 0 ] || for i in 1 2 3; do echo x; done; : > done$RANK"};
    return RunLaunch(command_, setting_);
  });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(temp_.Has("done1") && temp_.Has("done2"));
}

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
              UnorderedElementsAre("-o BatchMode=yes -T worker1", "-o BatchMode=yes -T worker2",
                                   "-o BatchMode=yes -T worker2"));
}

TEST_F(LaunchTest, SignalsReachRanksOnOtherHostsOnce) {
  UseHosts("worker1 slots=2\nworker2 slots=1\n");
  const Outcome outcome = Run(3, "LAUNCHER=" + std::to_string(::getpid()) + "; " + kSignals);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(temp_.Read("got0"), "INT\nTERM\n");
  EXPECT_EQ(temp_.Read("got1"), "INT\nTERM\n");
}

TEST_F(LaunchTest, WhoeverSignalsAllProcessesOfThisHostDoesNotCutOffRanksOnOthers) {
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
    case "$4" in worker1) sleep 1000 ;; *) exit 255 ;; esac)");
  const Outcome outcome = Run(2, "");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (on worker2) ended with ssh's exit code 255"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 (on worker1) cannot be killed and may still run"));
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
