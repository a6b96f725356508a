#include "zero/plan/numa_placement.h"

#include <gmock/gmock.h>

namespace penstock::zero {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const PathDevices kFast = {"/fast", {"nvme0n1"}};
const PathDevices kOther = {"/other", {"nvme1n1"}};
const PathDevices kBoth = {"/raid", {"nvme0n1", "nvme1n1"}};
const PathDevices kVirtual = {"/virtual", {"vda"}};
const PathDevices kUnknown = {"/tmpfs", {}};

constexpr char kNoGpu[] = "";
constexpr char kGpu0[] = "0000:3b:00.0";
constexpr char kGpu1[] = "0000:af:00.0";
constexpr char kGpuAnywhere[] = "f59d:00:00.0";

/// Two nodes with a drive and a GPU each, and a drive and a GPU that hang on no node in particular.
Topology TwoNodes() {
  return {.nodes = {0, 1},
          .devices = {{"nvme0n1", {0}, {0, 1, 2, 3}},
                      {"nvme1n1", {1}, {4, 5, 6, 7}},
                      {"vda", {0, 1}, {0, 1, 2, 3, 4, 5, 6, 7}},
                      {kGpu0, {0}, {0, 1, 2, 3}},
                      {kGpu1, {1}, {4, 5, 6, 7}},
                      {kGpuAnywhere, {0, 1}, {0, 1, 2, 3, 4, 5, 6, 7}}}};
}

TEST(NumaPlacementTest, OneNodeChangesNothingAndSaysSo) {
  const NumaPlacement placement =
      PlaceNear({.nodes = {0}, .devices = {{"nvme0n1", {0}, {0, 1}}}}, {kFast, kUnknown}, kNoGpu);
  EXPECT_THAT(placement.cpus, SizeIs(2));
  EXPECT_THAT(placement.cpus, Each(IsEmpty()));
  EXPECT_THAT(placement.memory_nodes, IsEmpty());
  EXPECT_THAT(placement.notice, HasSubstr("one NUMA node"));
  const NumaPlacement with_gpu = PlaceNear(
      {.nodes = {0}, .devices = {{"nvme0n1", {0}, {0, 1}}, {kGpu0, {0}, {0, 1}}}}, {kFast}, kGpu0);
  EXPECT_THAT(with_gpu.cpus, ElementsAre(IsEmpty()));
  EXPECT_THAT(with_gpu.memory_nodes, IsEmpty());
  EXPECT_EQ(with_gpu.notice, placement.notice);
}

TEST(NumaPlacementTest, ADriveIsServedOnItsNodeAndMemoryLiesThere) {
  const NumaPlacement placement = PlaceNear(TwoNodes(), {kOther}, kNoGpu);
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(1));
  EXPECT_THAT(placement.notice, HasSubstr("/other run on node 1"));
}

TEST(NumaPlacementTest, DrivesOnSeveralNodesAreServedOnTheirOwnAndMemoryIsInterleaved) {
  const NumaPlacement placement = PlaceNear(TwoNodes(), {kOther, kFast}, kNoGpu);
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(0, 1));
  EXPECT_THAT(placement.notice, HasSubstr("memory lies on nodes 0, 1"));
}

TEST(NumaPlacementTest, ADriveThatHangsOnAllNodesOrIsUnknownAsksForNothing) {
  for (const PathDevices& path : {kVirtual, kUnknown, kBoth}) {
    const NumaPlacement placement = PlaceNear(TwoNodes(), {path}, kNoGpu);
    EXPECT_THAT(placement.cpus, ElementsAre(IsEmpty()));
    EXPECT_THAT(placement.memory_nodes, IsEmpty());
    EXPECT_THAT(placement.notice, HasSubstr("nothing is placed; " + path.path + " hangs on no"));
  }
  const NumaPlacement mixed = PlaceNear(TwoNodes(), {kVirtual, kFast}, kNoGpu);
  EXPECT_THAT(mixed.cpus, ElementsAre(IsEmpty(), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(mixed.memory_nodes, ElementsAre(0));
}

TEST(NumaPlacementTest, ADriveWhoseCpusAreOutOfReachAsksForNothingAndTheNoticeSaysSo) {
  Topology bound = TwoNodes();  // to the CPUs of node 0, as `numactl -N 0` does
  bound.devices[1].cpus = {};
  const NumaPlacement alone = PlaceNear(bound, {kOther}, kNoGpu);
  EXPECT_THAT(alone.cpus, ElementsAre(IsEmpty()));
  EXPECT_THAT(alone.memory_nodes, IsEmpty());
  EXPECT_THAT(alone.notice, HasSubstr("nothing is placed"));
  const NumaPlacement both = PlaceNear(bound, {kOther, kFast}, kNoGpu);
  EXPECT_THAT(both.cpus, ElementsAre(IsEmpty(), ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(both.memory_nodes, ElementsAre(0));
  for (const NumaPlacement& placement : {alone, both}) {
    EXPECT_THAT(placement.notice,
                HasSubstr("/other is out of reach, as this process may use no CPU of node 1"));
    EXPECT_THAT(placement.notice, ::testing::Not(HasSubstr("/other run on")));
  }
}

TEST(NumaPlacementTest, WithTheGpuOnTheNodeOfTheDriveMemoryLiesThere) {
  const NumaPlacement placement = PlaceNear(TwoNodes(), {kOther}, kGpu1);
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(1));
  EXPECT_THAT(placement.notice, HasSubstr("I/O threads of /other run on node 1, GPU 0000:af:00.0 "
                                          "hangs on node 1, host memory lies on node 1"));
}

TEST(NumaPlacementTest, WithTheGpuOnAnotherNodeMemoryLiesOnBothAndIoThreadsStayNearTheirDrive) {
  const NumaPlacement placement = PlaceNear(TwoNodes(), {kOther}, kGpu0);
  EXPECT_THAT(placement.cpus, ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(placement.memory_nodes, ElementsAre(0, 1));
  EXPECT_THAT(placement.notice, HasSubstr("I/O threads of /other run on node 1, GPU 0000:3b:00.0 "
                                          "hangs on node 0, host memory lies on nodes 0, 1"));
}

TEST(NumaPlacementTest, WhereNoDriveHangsOnANodeMemoryLiesNearTheGpu) {
  const NumaPlacement unknown = PlaceNear(TwoNodes(), {kUnknown}, kGpu1);
  EXPECT_THAT(unknown.cpus, ElementsAre(IsEmpty()));
  EXPECT_THAT(unknown.memory_nodes, ElementsAre(1));
  EXPECT_EQ(unknown.notice,
            "2 NUMA nodes: GPU 0000:af:00.0 hangs on node 1, host memory lies on node 1; /tmpfs "
            "hangs on no node in particular");
  EXPECT_THAT(PlaceNear(TwoNodes(), {}, kGpu1).memory_nodes, ElementsAre(1));
}

TEST(NumaPlacementTest, AGpuIsFoundByItsBusIdInCapitalsToo) {
  EXPECT_THAT(PlaceNear(TwoNodes(), {}, "0000:AF:00.0").memory_nodes, ElementsAre(1));
}

TEST(NumaPlacementTest, AGpuThatHangsOnAllNodesOrIsUnknownAsksForNothingAndTheNoticeSaysSo) {
  // Not the GPUs on node 1 at the same bus of domain 0, or another function of it.
  for (const char* gpu : {kGpuAnywhere, "10000:af:00.0", "0000:af:00.1", "no bus id"}) {
    const NumaPlacement placement = PlaceNear(TwoNodes(), {kFast}, gpu);
    EXPECT_THAT(placement.memory_nodes, ElementsAre(0)) << gpu;
    EXPECT_THAT(placement.notice, HasSubstr(std::string("host memory lies on node 0; GPU ") + gpu +
                                            " hangs on no node in particular"));
    EXPECT_THAT(PlaceNear(TwoNodes(), {}, gpu).notice, HasSubstr("nothing is placed; GPU"));
  }
}

TEST(NumaPlacementTest, AGpuOnNodesWhoseCpusAreOutOfReachAsksForNothingAndTheNoticeSaysSo) {
  Topology bound = TwoNodes();
  for (IoDevice& device : bound.devices) {
    if (device.nodes == std::vector<int>{1}) device.cpus = {};
  }
  const NumaPlacement placement = PlaceNear(bound, {kFast}, kGpu1);
  EXPECT_THAT(placement.memory_nodes, ElementsAre(0));
  EXPECT_THAT(placement.notice,
              HasSubstr("GPU 0000:af:00.0 is out of reach, as this process may use no CPU of node "
                        "1"));
}

}  // namespace
}  // namespace penstock::zero
