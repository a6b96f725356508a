#include "offload/placement.h"

#include <gmock/gmock.h>

namespace penstock::offload {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const PathDevices kNear0 = {"/fast", {"nvme0n1"}};
const PathDevices kNear1 = {"/other", {"nvme1n1"}};
const PathDevices kBoth = {"/raid", {"nvme0n1", "nvme1n1"}};
const PathDevices kAnywhere = {"/virtual", {"vda"}};
const PathDevices kUnknown = {"/tmpfs", {}};

/// Two nodes with a drive each, and one drive that hangs on no node in particular.
Topology TwoNodes() {
  return {.nodes = {0, 1},
          .devices = {{"nvme0n1", {0}, {0, 1, 2, 3}},
                      {"nvme1n1", {1}, {4, 5, 6, 7}},
                      {"vda", {0, 1}, {0, 1, 2, 3, 4, 5, 6, 7}}}};
}

TEST(PlacementTest, OneNodeChangesNothingAndSaysSo) {
  const Placement placement =
      PlaceNear({.nodes = {0}, .devices = {{"nvme0n1", {0}, {0, 1}}}}, {kNear0, kUnknown});
  EXPECT_THAT(placement.cpus, SizeIs(2));
  EXPECT_THAT(placement.cpus, Each(IsEmpty()));
  EXPECT_THAT(placement.memory_nodes, IsEmpty());
  EXPECT_THAT(placement.notice, HasSubstr("one NUMA node"));
}

TEST(PlacementTest, ADriveIsServedOnItsNodeAndMemoryLiesThere) {
  const Placement placement = PlaceNear(TwoNodes(), {kNear1});
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(1));
  EXPECT_THAT(placement.notice, HasSubstr("/other run on node 1"));
}

TEST(PlacementTest, DrivesOnSeveralNodesAreServedOnTheirOwnAndMemoryIsInterleaved) {
  const Placement placement = PlaceNear(TwoNodes(), {kNear1, kNear0});
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(0, 1));
  EXPECT_THAT(placement.notice, HasSubstr("memory lies on nodes 0, 1"));
}

TEST(PlacementTest, ADriveThatHangsOnAllNodesOrIsUnknownAsksForNothing) {
  for (const PathDevices& path : {kAnywhere, kUnknown, kBoth}) {
    const Placement placement = PlaceNear(TwoNodes(), {path});
    EXPECT_THAT(placement.cpus, ElementsAre(IsEmpty()));
    EXPECT_THAT(placement.memory_nodes, IsEmpty());
    EXPECT_THAT(placement.notice, HasSubstr("nothing is placed"));
  }
  const Placement mixed = PlaceNear(TwoNodes(), {kAnywhere, kNear0});
  EXPECT_THAT(mixed.cpus, ElementsAre(IsEmpty(), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(mixed.memory_nodes, ElementsAre(0));
}

TEST(PlacementTest, ADriveWhoseCpusAreOutOfReachAsksForNothingAndTheNoticeSaysSo) {
  Topology bound = TwoNodes();  // to the CPUs of node 0, as `numactl -N 0` does
  bound.devices[1].cpus = {};
  const Placement alone = PlaceNear(bound, {kNear1});
  EXPECT_THAT(alone.cpus, ElementsAre(IsEmpty()));
  EXPECT_THAT(alone.memory_nodes, IsEmpty());
  EXPECT_THAT(alone.notice, HasSubstr("nothing is placed"));
  const Placement both = PlaceNear(bound, {kNear1, kNear0});
  EXPECT_THAT(both.cpus, ElementsAre(IsEmpty(), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(both.memory_nodes, ElementsAre(0));
  for (const Placement& placement : {alone, both}) {
    EXPECT_THAT(placement.notice,
                HasSubstr("/other is not placed, as this process may use no CPU of node 1"));
    EXPECT_THAT(placement.notice, ::testing::Not(HasSubstr("/other run on")));
  }
}

}  // namespace
}  // namespace penstock::offload
