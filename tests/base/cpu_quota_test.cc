// What cgroups leave to a process, from trees of files as Linux and containers show them.
#include "base/cpu_quota.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public ::testing::Test {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;

  ~CpuQuotaTest() override { fs::remove_all(root_); }

  /// Where `groups` is the process's /proc/self/cgroup, and `files` lie below /sys/fs/cgroup.
  std::optional<double> Quota(const std::string& groups, const Files& files) const {
    fs::remove_all(root_);
    Write(root_ / "proc/self/cgroup", groups);
    for (const auto& [name, text] : files) Write(root_ / "sys/fs/cgroup" / name, text);
    return CpuQuota(root_);
  }

 private:
  static void Write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  const fs::path root_ = fs::path(testing::TempDir()) / "cpu-quota";
};

TEST_F(CpuQuotaTest, IsThatOfTheProcesssGroup) {
  EXPECT_EQ(Quota("0::/work\n", {{"work/cpu.max", "250000 100000\n"}}), 2.5);
  EXPECT_EQ(
      Quota("4:memory:/m\n3:cpu,cpuacct:/work\n",
            {{"cpu/work/cpu.cfs_quota_us", "50000\n"}, {"cpu/work/cpu.cfs_period_us", "100000\n"}}),
      0.5);
}

TEST_F(CpuQuotaTest, IsTheLeastOfAllGroupsAbove) {
  const Files files = {{"a/cpu.max", "400000 100000\n"},
                       {"a/b/cpu.max", "150000 50000\n"},
                       {"a/b/c/cpu.max", "max 100000\n"}};
  EXPECT_EQ(Quota("0::/a\n", files), 4);
  EXPECT_EQ(Quota("0::/a/b/c\n", files), 3);
}

TEST_F(CpuQuotaTest, OfAContainerThatSeesItsGroupAsTheRootIsThatOfTheRoot) {
  EXPECT_EQ(Quota("0::/\n", {{"cpu.max", "200000 100000\n"}}), 2);
  EXPECT_EQ(Quota("2:cpu,cpuacct:/docker/1f\n", {{"cpu,cpuacct/cpu.cfs_quota_us", "300000\n"},
                                                 {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"}}),
            3);
}

TEST_F(CpuQuotaTest, NoneWhereNothingIsLimitedOrToBeSeen) {
  EXPECT_EQ(Quota("0::/work\n", {{"work/cpu.max", "max 100000\n"}}), std::nullopt);
  EXPECT_EQ(
      Quota("1:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "-1\n"}, {"cpu/cpu.cfs_period_us", "100000\n"}}),
      std::nullopt);
  EXPECT_EQ(Quota("0::/work\n", {}), std::nullopt);
  EXPECT_EQ(Quota("nothing of the kind", {{"cpu.max", "100000 100000\n"}}), std::nullopt);
  EXPECT_EQ(CpuQuota("/nowhere"), std::nullopt);
}

TEST_F(CpuQuotaTest, OtherControllersGroupsAreNotItsOwn) {
  EXPECT_EQ(
      Quota("3:cpuset:/work\n1:cpuacct:/work\n",
            {{"cpu/work/cpu.cfs_quota_us", "50000\n"}, {"cpu/work/cpu.cfs_period_us", "100000\n"}}),
      std::nullopt);
}

}  // namespace
}  // namespace penstock
