#include "zero/plan/numa_placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace penstock::zero {
namespace {

/// The nodes that some devices hang on together, and those of their CPUs that this process may use.
struct Nearest {
  std::set<int> nodes;
  std::set<int> cpus;
};

std::string Nodes(const std::set<int>& nodes) {
  return fmt::format("node{} {}", nodes.size() == 1 ? "" : "s", fmt::join(nodes, ", "));
}

/// Returns nothing if `devices`, called `name`, ask for nothing; the reason is then added to
/// `why_not`.
Nearest NearestTo(const Topology& topology, const std::vector<std::string>& devices,
                  const std::string& name, std::string& why_not) {
  Nearest nearest;
  for (const IoDevice& device : topology.devices) {
    if (std::find(devices.begin(), devices.end(), device.name) == devices.end()) continue;
    nearest.nodes.insert(device.nodes.begin(), device.nodes.end());
    nearest.cpus.insert(device.cpus.begin(), device.cpus.end());
  }
  if (nearest.nodes.empty() || nearest.nodes.size() == topology.nodes.size()) {
    why_not += fmt::format("; {} hangs on no node in particular", name);
    return {};
  }
  if (nearest.cpus.empty()) {
    why_not += fmt::format("; {} is out of reach, as this process may use no CPU of {}", name,
                           Nodes(nearest.nodes));
    return {};
  }
  return nearest;
}

std::string LowerCase(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

NumaPlacement PlaceNear(const Topology& topology, const std::vector<PathDevices>& paths,
                        const std::string& gpu) {
  NumaPlacement placement{.cpus = std::vector<std::vector<int>>(paths.size())};
  if (topology.nodes.size() < 2) {
    placement.notice = "one NUMA node: host memory needs no placement";
    return placement;
  }
  std::set<int> memory;
  std::string near;
  std::string why_not;
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto& [path, devices] = paths[i];
    const Nearest nearest = NearestTo(topology, devices, path, why_not);
    if (nearest.nodes.empty()) continue;
    placement.cpus[i].assign(nearest.cpus.begin(), nearest.cpus.end());
    memory.insert(nearest.nodes.begin(), nearest.nodes.end());
    near += fmt::format("I/O threads of {} run on {}, ", path, Nodes(nearest.nodes));
  }
  if (!gpu.empty()) {
    const Nearest nearest = NearestTo(topology, {LowerCase(gpu)}, "GPU " + gpu, why_not);
    memory.insert(nearest.nodes.begin(), nearest.nodes.end());
    if (!nearest.nodes.empty()) {
      near += fmt::format("GPU {} hangs on {}, ", gpu, Nodes(nearest.nodes));
    }
  }
  placement.memory_nodes.assign(memory.begin(), memory.end());
  const std::string lies =
      memory.empty() ? "nothing is placed" : "host memory lies on " + Nodes(memory);
  placement.notice =
      fmt::format("{} NUMA nodes: {}{}{}", topology.nodes.size(), near, lies, why_not);
  return placement;
}

}  // namespace penstock::zero
