// How much CPU time a container leaves to the process.
#pragma once

#include <optional>
#include <string>

namespace penstock {

/// Returns the smallest quota that the process's control groups set, in CPUs (1.5: one and a half
/// CPUs' time), or nothing if none is set or visible. `root`: the folder of /proc and /sys.
/// Formats: the kernel's admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst
/// (cpu.cfs_quota_us).
std::optional<double> CpuQuota(const std::string& root = "/");

}  // namespace penstock
