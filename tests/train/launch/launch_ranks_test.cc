// Ranks that penstock launch starts on this host: what they find, and what becomes of what they
// write.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/train/launch/launch_support.h"
#include "train/launch/launch.h"
#include "train/launch/meeting_port.h"

namespace penstock::train {
namespace {

using testing::UnorderedElementsAre;

TEST_F(LaunchTest, EveryRankKnowsItsNumberAndWhereAllMeet) {
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
  // The parent of this test may have set some.
  int inherited = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++inherited;
  }
  const Outcome outcome = Run(2, "cat; ls /proc/self/fd | wc -l");
  EXPECT_EQ(outcome.out, std::to_string(4 + inherited) + "\n")
      << "the standard ones, and the folder that is listed";
}

TEST_F(LaunchTest, RanksGetSignalsThatTheLaunchersParentIgnores) {
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

TEST_F(LaunchTest, ARankMayCloseItsOutput) {
  const Outcome outcome =
      Run(2, "exec >&- 2>&-; : > closed$RANK; await closed0; await closed1; exit $RANK");
  EXPECT_EQ(outcome.code, 1);
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

}  // namespace
}  // namespace penstock::train
