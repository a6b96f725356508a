#include "offload/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace penstock::offload {
namespace {

/// What the devices of one path hang on together; no nodes where that is all of them, or unknown.
struct Nearest {
  std::set<int> nodes;
  std::set<int> cpus;
};

Nearest NearestOf(const Topology& topology, const PathDevices& path) {
  Nearest nearest;
  for (const BlockDevice& device : topology.devices) {
    if (std::find(path.devices.begin(), path.devices.end(), device.name) == path.devices.end()) {
      continue;
    }
    nearest.nodes.insert(device.nodes.begin(), device.nodes.end());
    nearest.cpus.insert(device.cpus.begin(), device.cpus.end());
  }
  if (nearest.nodes.size() == topology.nodes.size()) return {};
  return nearest;
}

std::string Nodes(const std::set<int>& nodes) {
  return fmt::format("node{} {}", nodes.size() == 1 ? "" : "s", fmt::join(nodes, ", "));
}

}  // namespace

Placement PlaceNear(const Topology& topology, const std::vector<PathDevices>& paths) {
  Placement placement{.cpus = std::vector<std::vector<int>>(paths.size())};
  if (topology.nodes.size() < 2) {
    placement.notice = "one NUMA node: I/O threads and host memory need no placement";
    return placement;
  }
  std::set<int> memory;
  std::string near;
  std::string out_of_reach;
  for (size_t i = 0; i < paths.size(); ++i) {
    const Nearest nearest = NearestOf(topology, paths[i]);
    if (nearest.nodes.empty()) continue;
    if (nearest.cpus.empty()) {
      out_of_reach += fmt::format("; {} is not placed, as this process may use no CPU of {}",
                                  paths[i].path, Nodes(nearest.nodes));
      continue;
    }
    placement.cpus[i].assign(nearest.cpus.begin(), nearest.cpus.end());
    memory.insert(nearest.nodes.begin(), nearest.nodes.end());
    near += fmt::format("I/O threads of {} run on {}, ", paths[i].path, Nodes(nearest.nodes));
  }
  placement.memory_nodes.assign(memory.begin(), memory.end());
  placement.notice = fmt::format("{} NUMA nodes: ", topology.nodes.size());
  if (memory.empty()) {
    placement.notice += "no drive hangs on one of them within reach, nothing is placed";
  } else {
    placement.notice += fmt::format("{}host memory lies on {}", near, Nodes(memory));
  }
  placement.notice += out_of_reach;
  return placement;
}

}  // namespace penstock::offload
