#include "train/launch/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;

std::vector<HostSlots> Parsed(const std::string& text) {
  const Result<std::vector<HostSlots>> hosts = ParseHostfile(text, "hosts", "here.lan");
  EXPECT_TRUE(hosts.ok()) << hosts.error().message;
  return hosts.ok() ? *hosts : std::vector<HostSlots>();
}

TEST(Hostfile, AHostIsALineAndCommentsAndBlankLinesAreNone) {
  EXPECT_THAT(Parsed("# all\n\nworker1 slots=8\n \t\n  worker-2.lan\tslots=1 # slow\r\n10.0.0.3 "
                     "slots=65536\nfe80::1%eth0 slots=2"),
              ElementsAre(HostSlots{"worker1", 8}, HostSlots{"worker-2.lan", 1},
                          HostSlots{"10.0.0.3", 65536}, HostSlots{"fe80::1%eth0", 2}));
}

TEST(Hostfile, ABadLineIsNamedByFileAndNumberWithWhatToDo) {
  struct Case {
    std::string text;
    std::vector<std::string> parts;
  };
  const std::string zero("a\0b slots=1", 11);
  for (const auto& [text, parts] : std::vector<Case>{
           {"a slots=1\nworker2\n", {"hosts:2: worker2 has no slots", "worker1 slots=8"}},
           {"a slots\n", {"hosts:1: \"slots\" is not understood"}},
           {"a slot=2\n", {"hosts:1: \"slot=2\""}},
           {"a slots=2 max_slots=4\n", {"hosts:1: \"max_slots=4\""}},
           {"a slots=\n", {"hosts:1: slots: \"\" is not a whole number"}},
           {"a slots= 2\n", {"hosts:1: \"2\" is not understood"}},
           {"a slots=0\n", {"hosts:1: slots: \"0\"", "leave out hosts without slots"}},
           {"a slots=-1\n", {"\"-1\""}},
           {"a slots=70000\n", {"from 1 to 65536"}},
           {"a slots=1\n\nb slots=1\na slots=3\n", {"hosts:4: a stands in line 1 already; write"}},
           {"-oProxyCommand=x slots=1\n", {"hosts:1: \"-oProxyCommand=x\" is no name"}},
           {"a;b slots=1\n", {"\"a;b\" is no name"}},
           {"me@a slots=1\n", {"\"me@a\" names a user", "~/.ssh/config"}},
           {zero, {"hosts:1: \"a?b\""}},
           {std::string(5000, 'x') + "/ slots=1", {"...\" is no name"}},
           {"", {"hosts names no host"}},
           {"# nobody\n", {"hosts names no host"}}}) {
    EXPECT_TRUE(
        FailsWith(ParseHostfile(text, "hosts", "here.lan"), ErrorCode::kInvalidArgument, parts))
        << text;
  }
}

TEST(Hostfile, TwoNamesOfOneHostAreOneHostTwice) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"localhost slots=2\nhere slots=2\n",
            "hosts:2: here stands in line 1 already, as localhost"},
           {"here.lan slots=2\na slots=1\n127.0.0.1 slots=2\n",
            "hosts:3: 127.0.0.1 stands in line 1"},
           {"Worker slots=2\nworker slots=2\n",
            "hosts:2: worker stands in line 1 already, as Worker"}}) {
    EXPECT_TRUE(FailsWith(ParseHostfile(text, "hosts", "here.lan"), ErrorCode::kInvalidArgument,
                          {part, "write one line with all its slots"}));
  }
  // Nothing says that these are the same.
  EXPECT_EQ(Parsed("a slots=1\na.lan slots=1\nhere.org slots=1\nhere slots=1\n").size(), 4U);
}

TEST(Placement, HostsAreFilledInTheirOrder) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}, {"c", 4}};
  const auto places = PlaceRanks(5, hosts, "hosts");
  ASSERT_TRUE(places.ok());
  EXPECT_THAT(*places,
              ElementsAre(RankPlace{0, 0, 0, 2}, RankPlace{1, 0, 1, 2}, RankPlace{2, 1, 0, 1},
                          RankPlace{3, 2, 0, 2}, RankPlace{4, 2, 1, 2}));
}

TEST(Placement, AHostMayBeLeftWithoutRanks) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}};
  const auto places = PlaceRanks(2, hosts, "hosts");
  ASSERT_TRUE(places.ok());
  EXPECT_THAT(*places, ElementsAre(RankPlace{0, 0, 0, 2}, RankPlace{1, 0, 1, 2}));
}

TEST(Placement, MoreRanksThanSlotsAreRefusedWithBothNumbers) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}};
  EXPECT_TRUE(PlaceRanks(3, hosts, "hosts").ok());
  EXPECT_TRUE(FailsWith(PlaceRanks(4, hosts, "hosts"), ErrorCode::kInvalidArgument,
                        {"hosts has 3 slots, and --ranks asks for 4"}));
  const std::vector<HostSlots> many(65537, {"x", 65536});
  EXPECT_TRUE(PlaceRanks(1, many, "hosts").ok()) << "the sum of slots needs more than 32 bits";
}

}  // namespace
}  // namespace penstock::train
