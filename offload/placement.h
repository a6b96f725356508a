// Which CPUs serve which drive, and on which NUMA nodes host memory lies. A plain function.
//
// Every byte that moves between a drive and the GPU passes through host memory. Where the two hang
// on different nodes, it crosses between these once, whichever of them it lies on; pages that lie
// on both in turns let the memory of both share the load.
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
/// on, and memory lies on the nodes of all drives and of the GPU. `gpu` is its bus id, in capitals
/// or not, or empty where there is none. A drive or GPU that hangs on all nodes, is not known, or
/// hangs on nodes whose CPUs this process may not use, asks for nothing.
Placement PlaceNear(const Topology& topology, const std::vector<PathDevices>& paths,
                    const std::string& gpu);

}  // namespace penstock::offload
