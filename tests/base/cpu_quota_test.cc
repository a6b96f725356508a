// What cgroups leave to a process, from trees of files as Linux and containers show them.
#include "base/cpu_quota.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public ::testing::Test {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;

  ~CpuQuotaTest() override { fs::remove_all(root_); }

  /// Where `groups` is the process's /proc/self/cgroup, and `files` lie below /sys/fs/cgroup. There
  /// are mounts of both versions, which show the groups from `shown` on.
  std::optional<double> Quota(const std::string& groups, const Files& files,
                              const std::string& shown = "/") const {
    fs::remove_all(root_);
    Write(root_ / "proc/self/cgroup", groups);
    Write(root_ / "proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755\n"
          "32 31 0:29 " +
              shown +
              " /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
              "33 31 0:30 / /sys/fs/cgroup/memory rw shared:1 master:2 - cgroup cgroup rw,memory\n"
              "34 31 0:31 " +
              shown + " /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    for (const auto& [name, text] : files) Write(root_ / "sys/fs/cgroup" / name, text);
    return CpuQuota(root_);
  }

 private:
  static void Write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  const fs::path root_ = testing::TempDir() + "cpu-quota-" + std::to_string(::getpid());
};

TEST_F(CpuQuotaTest, IsThatOfTheProcesssGroup) {
  EXPECT_EQ(Quota("0::/work\n", {{"unified/work/cpu.max", "250000 100000\n"}}), 2.5);
  EXPECT_EQ(
      Quota("4:memory:/m\n3:cpu,cpuacct:/work\n",
            {{"cpu/work/cpu.cfs_quota_us", "50000\n"}, {"cpu/work/cpu.cfs_period_us", "100000\n"}}),
      0.5);
}

TEST_F(CpuQuotaTest, IsTheLeastOfAllGroupsAbove) {
  const Files files = {{"unified/a/cpu.max", "400000 100000\n"},
                       {"unified/a/b/cpu.max", "150000 50000\n"},
                       {"unified/a/b/c/cpu.max", "max 100000\n"}};
  EXPECT_EQ(Quota("0::/a\n", files), 4);
  EXPECT_EQ(Quota("0::/a/b/c\n", files), 3);
}

TEST_F(CpuQuotaTest, OfAContainerThatSeesItsGroupAsTheRootIsThatOfTheRootAndBelow) {
  const Files of_both = {{"cpu/cpu.cfs_quota_us", "300000\n"},
                         {"cpu/cpu.cfs_period_us", "100000\n"},
                         {"cpu/job/cpu.cfs_quota_us", "200000\n"},
                         {"cpu/job/cpu.cfs_period_us", "100000\n"}};
  // With a namespace of its own, and without, where paths are still the host's.
  EXPECT_EQ(Quota("2:cpu,cpuacct:/\n", of_both), 3);
  EXPECT_EQ(Quota("2:cpu,cpuacct:/\n", of_both, "/docker/1f"), 3);
  EXPECT_EQ(Quota("2:cpu,cpuacct:/docker/1f\n", of_both, "/docker/1f"), 3);
  EXPECT_EQ(Quota("2:cpu,cpuacct:/docker/1f/job\n", of_both, "/docker/1f"), 2);
  EXPECT_EQ(Quota("0::/\n", {{"unified/cpu.max", "200000 100000\n"}}), 2);
}

TEST_F(CpuQuotaTest, NoneWhereNothingIsLimitedOrToBeSeen) {
  EXPECT_EQ(Quota("0::/work\n", {{"unified/work/cpu.max", "max 100000\n"}}), std::nullopt);
  EXPECT_EQ(
      Quota("1:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "-1\n"}, {"cpu/cpu.cfs_period_us", "100000\n"}}),
      std::nullopt);
  EXPECT_EQ(Quota("0::/work\n", {}), std::nullopt);
  EXPECT_EQ(Quota("nothing of the kind", {{"unified/cpu.max", "100000 100000\n"}}), std::nullopt);
  EXPECT_EQ(CpuQuota("/nowhere"), std::nullopt);
}

TEST_F(CpuQuotaTest, GroupsOfOtherControllersAndOfTheOtherVersionAreNotItsOwn) {
  const Files limited = {{"cpu/work/cpu.cfs_quota_us", "50000\n"},
                         {"cpu/work/cpu.cfs_period_us", "100000\n"}};
  EXPECT_EQ(Quota("3:cpuset:/work\n1:cpuacct:/work\n", limited), std::nullopt);
  EXPECT_EQ(Quota("1:cpu,cpuacct:/\n0::/work\n", limited), std::nullopt);
}

}  // namespace
}  // namespace penstock
