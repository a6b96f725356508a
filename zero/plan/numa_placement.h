// Decides which CPUs serve which drive, and on which NUMA nodes host memory lies. A plain function.
//
// Every byte that moves between a drive and the GPU passes through host memory. If the two are
// attached to different nodes, every byte crosses between the nodes once, wherever the memory lies.
// Pages interleaved over both nodes let the memory of both share the load.
#pragma once

#include <string>
#include <vector>

#include "base/topology.h"

namespace penstock::zero {

/// A path of the state, and the block devices below it (BlockDevicesOf).
struct PathDevices {
  std::string path;
  std::vector<std::string> devices;
};

struct NumaPlacement {
  std::vector<std::vector<int>> cpus;  ///< CPUs of each path's I/O threads; empty: any
  /// Where slab pages should lie, interleaved if there are several nodes; empty: anywhere.
  std::vector<int> memory_nodes;
  std::string notice;  ///< what was decided and why, on one line
};

/// On a machine with several nodes, I/O threads run on the CPUs of the nodes of their drive, and
/// memory lies on the nodes of all drives and of the GPU. `gpu` is the GPU's bus id, in upper or
/// lower case, or empty if there is none. A drive or GPU does not count if it is attached to all
/// nodes, is not known, or is attached to nodes whose CPUs this process may not use.
NumaPlacement PlaceNear(const Topology& topology, const std::vector<PathDevices>& paths,
                        const std::string& gpu);

}  // namespace penstock::zero
