#include "base/cpu_quota.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace penstock {
namespace {

namespace fs = std::filesystem;

/// Where the groups of the CPU controller are mounted: version 2, beside version 1, and version 1.
constexpr const char* kMounts[] = {"", "unified", "cpu", "cpu,cpuacct"};

/// "cpu,cpuacct" and, of version 2, "" are hierarchies of the CPU controller.
bool OfCpu(std::string_view controllers) {
  return controllers.empty() || fmt::format(",{},", controllers).find(",cpu,") != std::string::npos;
}

/// What is set for a group, in one file or in two; "max" and -1 are no limit.
std::optional<double> QuotaOf(const fs::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream both(group / "cpu.max"); !(both >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

void Lower(std::optional<double> by, std::optional<double>& least) {
  if (by && (!least || *by < *least)) least = by;
}

}  // namespace

std::optional<double> CpuQuota(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/docker/1f"
    const size_t controllers = line.find(':') + 1;
    const size_t path = line.find(':', controllers);
    if (controllers == 0 || path == std::string::npos) continue;
    if (!OfCpu(std::string_view(line).substr(controllers, path - controllers))) continue;
    for (const char* const mount : kMounts) {
      // A container may see its own group as the root, under another path: what is not there has
      // no limit.
      const fs::path top = fs::path(root) / "sys/fs/cgroup" / mount;
      Lower(QuotaOf(top), least);
      fs::path group = top;
      for (const fs::path& name : fs::path(line.substr(path + 1)).relative_path()) {
        group /= name;
        Lower(QuotaOf(group), least);
      }
    }
  }
  return least;
}

}  // namespace penstock
