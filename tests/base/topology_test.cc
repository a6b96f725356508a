#include "base/topology.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "base/cpu_scope.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Two packages, each a NUMA node of two cores. A GPU on the first, a drive on the second; a drive
/// and a GPU on the whole machine.
constexpr char kTwoNodes[] = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" allowed_cpuset="0xf" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
      <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="7"/>
      <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3">
        <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2"/>
      </object>
      <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="5">
        <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="4"/>
      </object>
      <object type="Bridge" gp_index="25" bridge_type="0-1" depth="0" bridge_pci="0000:[3a-3b]">
        <object type="PCIDev" gp_index="26" pci_busid="0000:3b:00.0" pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="0.000000"/>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="12">
      <object type="NUMANode" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="13"/>
      <object type="Core" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="9">
        <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="8"/>
      </object>
      <object type="Core" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="11">
        <object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="10"/>
      </object>
      <object type="Bridge" gp_index="20" bridge_type="0-1" depth="0" bridge_pci="0000:[80-81]">
        <object type="PCIDev" gp_index="21" pci_busid="0000:81:00.0" pci_type="0108 [144d:a80a] [144d:a801] 00" pci_link_speed="0.000000">
          <object type="OSDev" gp_index="22" name="nvme0n1" osdev_type="0"/>
        </object>
      </object>
    </object>
    <object type="Bridge" gp_index="27" bridge_type="0-1" depth="0" bridge_pci="f59d:[00-00]">
      <object type="PCIDev" gp_index="28" pci_busid="f59d:00:0a.1" pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="0.000000"/>
    </object>
    <object type="OSDev" gp_index="23" name="vda" osdev_type="0"/>
    <object type="OSDev" gp_index="24" name="eth0" osdev_type="2"/>
  </object>
</topology>
)";

/// A node of two cores, the first of two hardware threads.
constexpr char kTwoThreads[] = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x7" complete_cpuset="0x7" allowed_cpuset="0x7" nodeset="0x1" complete_nodeset="0x1" allowed_nodeset="0x1" gp_index="1">
    <object type="NUMANode" os_index="0" cpuset="0x7" complete_cpuset="0x7" nodeset="0x1" complete_nodeset="0x1" gp_index="2"/>
    <object type="Core" os_index="0" cpuset="0x5" complete_cpuset="0x5" nodeset="0x1" complete_nodeset="0x1" gp_index="3">
      <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4"/>
      <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
    </object>
    <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
      <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="7"/>
    </object>
  </object>
</topology>
)";

TEST(TopologyTest, DrivesAndPciDevicesHangOnTheNodesOfTheirBus) {
  const auto topology = ReadTopology(kTwoNodes);
  ASSERT_TRUE(topology.ok()) << topology.error().message;
  EXPECT_THAT(topology->nodes, ElementsAre(0, 1));
  const auto device = [](const char* name, std::vector<int> nodes, std::vector<int> cpus) {
    return AllOf(Field("name", &IoDevice::name, name), Field("nodes", &IoDevice::nodes, nodes),
                 Field("cpus", &IoDevice::cpus, cpus));
  };
  EXPECT_THAT(
      topology->devices,
      UnorderedElementsAre(device("nvme0n1", {1}, {2, 3}), device("vda", {0, 1}, {0, 1, 2, 3}),
                           device("0000:81:00.0", {1}, {2, 3}), device("0000:3b:00.0", {0}, {0, 1}),
                           device("f59d:00:0a.1", {0, 1}, {0, 1, 2, 3})))
      << "and no network";
}

TEST(TopologyTest, CoresHaveTheirHardwareThreadsAndNodes) {
  const auto core = [](std::vector<int> nodes, std::vector<int> cpus) {
    return AllOf(Field("nodes", &Core::nodes, nodes), Field("cpus", &Core::cpus, cpus));
  };
  const auto single = ReadTopology(kTwoNodes);
  ASSERT_TRUE(single.ok()) << single.error().message;
  EXPECT_THAT(single->cores,
              ElementsAre(core({0}, {0}), core({0}, {1}), core({1}, {2}), core({1}, {3})));
  const auto paired = ReadTopology(kTwoThreads);
  ASSERT_TRUE(paired.ok()) << paired.error().message;
  EXPECT_THAT(paired->cores, ElementsAre(core({0}, {0, 2}), core({0}, {1})));
}

TEST(TopologyTest, WhereCoresAreNotDescribedEachCpuIsOne) {
  std::string coreless = kTwoThreads;
  for (size_t at = 0; (at = coreless.find("\"Core\"", at)) != std::string::npos;) {
    coreless.replace(at, 6, "\"Group\"");
  }
  const auto topology = ReadTopology(coreless);
  ASSERT_TRUE(topology.ok()) << topology.error().message;
  EXPECT_THAT(topology->cores, ::testing::SizeIs(3));
}

TEST(TopologyTest, ADescriptionThatIsNoneIsAnError) { EXPECT_FALSE(ReadTopology("no XML").ok()); }

TEST(TopologyTest, ThisMachineHasANodeAndDevicesHangOnItsNodes) {
  const auto topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.error().message;
  ASSERT_FALSE(topology->nodes.empty());
  ASSERT_FALSE(topology->cores.empty());
  for (const Core& core : topology->cores) EXPECT_FALSE(core.cpus.empty());
  for (const IoDevice& device : topology->devices) {
    EXPECT_THAT(device.nodes, ::testing::IsSubsetOf(topology->nodes)) << device.name;
  }
}

TEST(TopologyTest, CpusThatThisProcessMayNotUseAreNone) {
  const auto whole = ReadTopology();
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const int last = whole->cores.back().cpus.back();
  const CpuScope bound({last});
  ASSERT_TRUE(bound.status().ok()) << bound.status().error().message;
  const auto topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.error().message;
  ASSERT_THAT(topology->cores, ::testing::SizeIs(1));
  EXPECT_THAT(topology->cores[0].cpus, ElementsAre(last));
}

TEST(TopologyTest, AFileOnADiskNamesWholeDevicesThatExist) {
  const std::string folder = std::filesystem::current_path();
  const std::vector<std::string> devices = BlockDevicesOf(folder);
  if (devices.empty()) GTEST_SKIP() << folder << " is on no block device";
  for (const std::string& device : devices) {
    EXPECT_TRUE(std::filesystem::exists("/sys/class/block/" + device)) << device;
    EXPECT_FALSE(std::filesystem::exists("/sys/class/block/" + device + "/partition")) << device;
  }
}

TEST(TopologyTest, WhatIsOnNoBlockDeviceNamesNone) {
  EXPECT_THAT(BlockDevicesOf("/proc"), IsEmpty());
  EXPECT_THAT(BlockDevicesOf("/no/such/folder"), IsEmpty());
}

}  // namespace
}  // namespace penstock
