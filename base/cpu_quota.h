// How much CPU time a container leaves to the process.
#pragma once

#include <optional>
#include <string>

namespace penstock {

/// In CPUs (1.5: three halves of one CPU's time): the least that the process's control groups set.
/// None where nothing is set, or not to be seen. `root`: the folder of /proc and /sys. Formats: the
/// kernel's admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
std::optional<double> CpuQuota(const std::string& root = "/");

}  // namespace penstock
