#include "base/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/cpu_quota.h"
#include "base/mutex.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;

Error HwlocError(const char* what) {
  return ErrnoError(errno, fmt::format("hwloc cannot {}", what));
}

Result<HwlocTopology> Load(const std::string& xml) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return HwlocError("start");
  HwlocTopology topology(raw);
  // Installed plugins load graphics libraries that are not needed, and look for PCI devices, which
  // the kernel's files name as well.
  for (const char* component : {"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero", "pci"}) {
    static_cast<void>(
        hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component));
  }
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (xml.empty()) {
    // A program that was bound to some CPUs stays on them.
    hwloc_topology_set_flags(
        raw, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  } else if (hwloc_topology_set_xmlbuffer(raw, xml.c_str(), static_cast<int>(xml.size() + 1)) !=
             0) {
    return HwlocError("read the XML description of a machine");
  }
  if (hwloc_topology_load(raw) != 0) return HwlocError("look at this machine");
  return topology;
}

std::vector<int> Members(hwloc_const_bitmap_t set) {
  std::vector<int> members;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) members.push_back(i);
  return members;
}

/// A device belongs to the nodes of the processors to which it is attached.
IoDevice At(hwloc_topology_t topology, hwloc_obj_t device, std::string name) {
  const hwloc_obj* const parent = hwloc_get_non_io_ancestor_obj(topology, device);
  return {
      .name = std::move(name), .nodes = Members(parent->nodeset), .cpus = Members(parent->cpuset)};
}

/// If the machine does not report its cores, each CPU counts as one.
std::vector<Core> Cores(hwloc_topology_t topology) {
  const bool known = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = known ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<Core> cores;
  for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, type, nullptr); core != nullptr;
       core = hwloc_get_next_obj_by_type(topology, type, core)) {
    cores.push_back({.nodes = Members(core->nodeset), .cpus = Members(core->cpuset)});
  }
  return cores;
}

std::string BusId(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
}

/// "/sys/devices/…/nvme0n1/nvme0n1p2" becomes ".../nvme0n1"; a volume becomes what it is made of.
void AddDisks(const fs::path& device, std::vector<std::string>& names) {
  std::error_code error;
  if (fs::exists(device / "partition", error)) return AddDisks(device.parent_path(), names);
  bool made_of_others = false;
  fs::directory_iterator it(device / "slaves", error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code no_target;
    const fs::path target = fs::canonical(it->path(), no_target);
    if (no_target) continue;
    made_of_others = true;
    AddDisks(target, names);
  }
  if (!made_of_others) names.push_back(device.filename().string());
}

}  // namespace

Result<Topology> ReadTopology(const std::string& xml) {
  // hwloc asks libudev, which may be used by one thread at a time.
  static Mutex one_at_a_time;
  MutexLock lock(one_at_a_time);
  PENSTOCK_ASSIGN(const HwlocTopology loaded, Load(xml));
  hwloc_topology_t raw = loaded.get();
  Topology topology{.nodes = Members(hwloc_topology_get_topology_nodeset(raw)),
                    .cores = Cores(raw)};
  for (hwloc_obj_t device = hwloc_get_next_osdev(raw, nullptr); device != nullptr;
       device = hwloc_get_next_osdev(raw, device)) {
    if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_BLOCK) continue;
    topology.devices.push_back(At(raw, device, device->name));
  }
  for (hwloc_obj_t device = hwloc_get_next_pcidev(raw, nullptr); device != nullptr;
       device = hwloc_get_next_pcidev(raw, device)) {
    topology.devices.push_back(At(raw, device, BusId(device->attr->pcidev)));
  }
  if (xml.empty()) topology.cpu_quota = CpuQuota();
  return topology;
}

std::vector<std::string> BlockDevicesOf(const std::string& path, const std::string& root) {
  std::vector<std::string> names;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return names;
  std::error_code error;
  const fs::path device = fs::canonical(
      fs::path(root) / fmt::format("sys/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev)),
      error);
  if (!error) AddDisks(device, names);
  return names;
}

}  // namespace penstock
