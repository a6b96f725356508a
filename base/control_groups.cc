#include "base/control_groups.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace penstock {
namespace {

namespace fs = std::filesystem;

/// "cpu,cpuacct" names cpu.
bool Names(const std::string& list, const std::string& controller) {
  return fmt::format(",{},", list).find(fmt::format(",{},", controller)) != std::string::npos;
}

/// Lines of "4:cpu,cpuacct:/docker/1f"; version 2 has one without controllers, "0::/work".
struct Membership {
  bool version2;
  fs::path group;
};
std::vector<Membership> Memberships(const std::string& controller, const fs::path& root) {
  std::vector<Membership> found;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !Names(controllers, controller)) continue;
    found.push_back({.version2 = controllers.empty(), .group = line.substr(second + 1)});
  }
  return found;
}

/// Where a hierarchy is mounted, and which of its groups the mount shows as its root.
struct Mount {
  bool version2;
  fs::path group;
  fs::path folder;
};
/// Lines of "32 31 0:29 /docker/1f /sys/fs/cgroup/cpu rw … - cgroup cgroup rw,cpu".
std::vector<Mount> Mounts(const std::string& controller, const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::string id, parent, device, group, folder, word, type, source, options;
    std::istringstream words(line);
    words >> id >> parent >> device >> group >> folder;
    while (words >> word && word != "-") continue;
    if (!(words >> type >> source >> options)) continue;
    const bool version2 = type == "cgroup2";
    if (!version2 && !(type == "cgroup" && Names(options, controller))) continue;
    found.push_back({version2, group, root / fs::path(folder).relative_path()});
  }
  return found;
}

}  // namespace

std::vector<fs::path> ControlGroups(const std::string& controller, const std::string& root) {
  std::vector<fs::path> folders;
  const std::vector<Mount> mounts = Mounts(controller, root);
  for (const Membership& membership : Memberships(controller, root)) {
    for (const Mount& mount : mounts) {
      if (mount.version2 != membership.version2) continue;
      fs::path folder = mount.folder;
      folders.push_back(folder);
      const fs::path below = membership.group.lexically_relative(mount.group);
      // Elsewhere than below the mount's root: seen from a container, its own group is the root.
      if (below.empty() || *below.begin() == ".." || below == ".") continue;
      for (const fs::path& name : below) folders.push_back(folder /= name);
    }
  }
  return folders;
}

}  // namespace penstock
