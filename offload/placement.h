// Which CPUs serve which drive, and on which NUMA nodes host memory lies. A plain function.
#pragma once

#include <string>
#include <vector>

#include "base/topology.h"

namespace penstock::offload {

/// A path of the state, and the block devices below it (BlockDevicesOf).
struct PathDevices {
  std::string path;
  std::vector<std::string> devices;
};

struct Placement {
  std::vector<std::vector<int>> cpus;  ///< of each path's I/O threads; empty: anywhere
  /// Where slab pages should lie, in turns where there are several; empty: anywhere.
  std::vector<int> memory_nodes;
  std::string notice;  ///< what was decided and why, on one line
};

/// On a machine with several nodes, I/O threads run on the CPUs of the nodes that their drive hangs
/// on, and memory lies on the nodes of all drives. A drive that hangs on all nodes, is not known,
/// or hangs on nodes whose CPUs this process may not use, asks for nothing.
Placement PlaceNear(const Topology& topology, const std::vector<PathDevices>& paths);

}  // namespace penstock::offload
