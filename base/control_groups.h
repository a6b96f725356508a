// Which control groups the process is in, as a container's limits are theirs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock {

/// The folders of the process's control group for `controller` ("cpu", "memory") and of the groups
/// above it, as far as this process can see them: of version 2 and of version 1, where each file of
/// a limit has another name. `root`: the folder of /proc and /sys. Formats: cgroups(7) and proc(5),
/// /proc/self/cgroup and /proc/self/mountinfo.
std::vector<std::filesystem::path> ControlGroups(const std::string& controller,
                                                 const std::string& root = "/");

}  // namespace penstock
