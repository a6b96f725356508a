// Describes the machine as far as placement needs it: cores, NUMA nodes, and the nodes to which
// drives and other devices are attached. Only CPUs that this process may use count (affinity,
// cgroup).
//
// Found by hwloc. Plain values; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock {

struct IoDevice {
  std::string name;  ///< a block device ("nvme0n1"), or a PCI device's bus id ("0000:3b:00.0")
  std::vector<int> nodes;  ///< NUMA nodes it is attached to; all if unknown
  std::vector<int> cpus;   ///< those of the nodes that this process may use
};

/// A physical core.
struct Core {
  std::vector<int> nodes;  ///< NUMA nodes whose memory is near
  std::vector<int> cpus;   ///< its hardware threads that this process may use; one or more
};

struct Topology {
  std::vector<int> nodes;         ///< numbers of the NUMA nodes, ascending
  std::vector<Core> cores;        ///< one or more
  std::vector<IoDevice> devices;  ///< block devices and PCI devices
  /// CPUs' worth of time that cgroups leave to this process; none: no limit (base/cpu_quota.h).
  std::optional<double> cpu_quota;
};

/// Describes this machine or, for tests, a machine given in hwloc's XML, which no quota limits.
/// Errors: hwloc's.
Result<Topology> ReadTopology(const std::string& xml = {});

/// Returns the whole block devices that hold a file or folder: its partition's disk, or the disks
/// of its logical volume or RAID. Empty if there is none (tmpfs, a network) or it is not known.
/// `root`: the folder of /sys.
std::vector<std::string> BlockDevicesOf(const std::string& path, const std::string& root = "/");

}  // namespace penstock
