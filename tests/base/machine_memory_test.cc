#include "base/machine_memory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>

#include "tests/temp_folder.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

/// A tree with /proc/meminfo: 1 GiB, of which 512 MiB are available.
class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest() {
    root_.Write("proc/meminfo",
                "MemTotal:     1048576 kB\nMemFree: 1 kB\nMemAvailable:   524288 kB\n");
    root_.Write("proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
                "42 31 0:39 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }
  void WriteGroup(const std::string& path, const std::string& limit, Bytes current,
                  Bytes inactive_file = 0_B) {
    const std::string folder = "sys/fs/cgroup/" + path + "/";
    root_.Write(folder + "memory.max", limit + "\n");
    root_.Write(folder + "memory.current", fmt::format("{}\n", current.value));
    root_.Write(folder + "memory.stat",
                fmt::format("anon 1\ninactive_file {}\nshmem 2\n", inactive_file.value));
  }
  void ExpectMemory(Bytes total, Bytes available) const {
    const Result<MachineMemory> memory = ReadMachineMemory(root_.Path());
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    EXPECT_EQ(memory->total, total);
    EXPECT_EQ(memory->available, available);
  }

  const TempFolder root_;
};

TEST_F(MachineMemoryTest, WithoutControlGroupsIsThatOfMeminfo) { ExpectMemory(1_GiB, 512_MiB); }

TEST_F(MachineMemoryTest, IsWhatTheOwnControlGroupLeaves) {
  root_.Write("proc/self/cgroup", "4:memory:/v1\n0::/jobs/one\n");
  WriteGroup("jobs/one", "314572800", 100_MiB);
  ExpectMemory(200_MiB, 200_MiB);
}

TEST_F(MachineMemoryTest, IsWhatAGroupOfVersionOneLeaves) {
  root_.Write("proc/self/cgroup", "4:memory:/old\n0::/\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "314572800\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "157286400\n");
  root_.Write("sys/fs/cgroup/memory/old/memory.stat",
              "inactive_file 1\nhierarchical_memory_limit 2\ntotal_inactive_file 52428800\n");
  ExpectMemory(200_MiB, 200_MiB);
}

TEST_F(MachineMemoryTest, IsWhatTheNarrowestGroupAboveLeaves) {
  root_.Write("proc/self/cgroup", "0::/jobs/one\n");
  WriteGroup("jobs/one", "max", 100_MiB);
  WriteGroup("jobs", "734003200", 0_MiB);
  ExpectMemory(700_MiB, 512_MiB);
  WriteGroup("jobs", "209715200", 100_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, OfAContainerIsLimitedByTheGroupItTakesForTheTop) {
  root_.Write("proc/self/cgroup", "0::/\n");
  WriteGroup("", "209715200", 100_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, CountsPageCacheThatTheGroupCanGiveUpAsFree) {
  root_.Write("proc/self/cgroup", "0::/job\n");
  WriteGroup("job", "209715200", 190_MiB, 90_MiB);
  ExpectMemory(100_MiB, 100_MiB);
}

TEST_F(MachineMemoryTest, OfAGroupThatIsFullIsNone) {
  root_.Write("proc/self/cgroup", "0::/job\n");
  WriteGroup("job", "209715200", 201_MiB);
  ExpectMemory(0_B, 0_B);
}

TEST(MachineMemory, ThatCannotBeReadIsAnError) {
  const Result<MachineMemory> memory = ReadMachineMemory("/no/such/root");
  ASSERT_FALSE(memory.ok());
  EXPECT_THAT(memory.error().message,
              HasSubstr("/no/such/root/proc/meminfo does not say how much"));
}

TEST(MachineMemory, OfThisMachineIsPlausible) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory->available, 0_B);
  EXPECT_LE(memory->available, memory->total);
}

}  // namespace
}  // namespace penstock
