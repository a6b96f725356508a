// Finds the control groups of the process, which carry a container's limits.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock {

/// Returns the folders of the process's control group for `controller` ("cpu", "memory") and of the
/// groups above it, as far as this process can see them. They are those of version 2 and of version
/// 1, in which the files of the limits have other names. `root`: the folder of /proc and /sys.
/// Formats: cgroups(7) and proc(5), /proc/self/cgroup and /proc/self/mountinfo.
std::vector<std::filesystem::path> ControlGroups(const std::string& controller,
                                                 const std::string& root = "/");

}  // namespace penstock
