#include "base/cpu_quota.h"

#include <filesystem>
#include <fstream>

#include "base/control_groups.h"

namespace penstock {
namespace {

double ReadQuota(const std::filesystem::path& path) {
  std::ifstream in(path);
  double number = 0;
  return in >> number ? number : 0;
}

/// What is set for a group, in one file or in two; "max" and -1 are no limit.
std::optional<double> QuotaOf(const std::filesystem::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream both(group / "cpu.max"); !(both >> quota >> period)) {
    quota = ReadQuota(group / "cpu.cfs_quota_us");
    period = ReadQuota(group / "cpu.cfs_period_us");
  }
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

}  // namespace

std::optional<double> CpuQuota(const std::string& root) {
  std::optional<double> least;
  for (const std::filesystem::path& group : ControlGroups("cpu", root)) {
    const std::optional<double> quota = QuotaOf(group);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

}  // namespace penstock
