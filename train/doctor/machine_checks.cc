#include "train/doctor/machine_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include "base/control_groups.h"
#include "base/cpu_quota.h"
#include "base/machine_memory.h"
#include "base/units.h"

namespace penstock::train {
namespace {

constexpr std::pair kFirstGoodKernel = {5, 6};  // io_uring's reads and writes
constexpr Bytes kLittleMemory = 1_GiB;
constexpr Bytes kLittleLimit = 2_GiB;

/// "docker", "podman", "kubernetes"; empty if nothing tells of a container.
std::string ContainerKind(const MachineFiles& files) {
  if (files.Exists("run/secrets/kubernetes.io")) return "kubernetes";
  if (files.Exists("run/.containerenv")) return "podman";
  if (files.Exists(".dockerenv")) return "docker";
  return files.Line("run/systemd/container").value_or("");
}

/// The lowest limit of a control group, and the group.
struct GroupLimit {
  Bytes limit;
  std::string group;
};

std::optional<GroupLimit> LowestLimit(const MachineFiles& files) {
  std::optional<GroupLimit> lowest;
  for (const std::filesystem::path& folder : ControlGroups("memory", files.root())) {
    const std::string group = folder.lexically_relative(files.root()).lexically_normal().string();
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      const std::optional<uint64_t> limit = files.Number(group + "/" + name);
      // Version 1 writes its largest number where there is no limit.
      if (!limit || *limit >= uint64_t{1} << 62) continue;
      if (!lowest || *limit < lowest->limit.value) lowest = {Bytes{*limit}, "/" + group};
    }
  }
  return lowest;
}

}  // namespace

Check KernelCheck(const MachineFiles& files) {
  const std::optional<std::string> release = files.Line("proc/sys/kernel/osrelease");
  if (!release) {
    return UnknownCheck("kernel", "unknown: /proc/sys/kernel/osrelease cannot be read");
  }
  std::string found = "Linux " + *release;
  const std::optional<std::string> machine = files.Line("proc/sys/kernel/arch");
  if (machine) found += ", " + *machine;
  const std::string container = ContainerKind(files);
  found += container.empty() ? ", no container seen" : ", in a container (" + container + ")";
  std::pair<int, int> version;
  if (std::sscanf(release->c_str(), "%d.%d", &version.first, &version.second) == 2 &&
      version < kFirstGoodKernel) {
    return WarnCheck("kernel", found,
                     "io_uring has reads and writes from 5.6 on; with this one libaio or threads "
                     "do the I/O");
  }
  return OkCheck("kernel", found);
}

std::optional<uint64_t> UsableCpus(const MachineFiles& files) {
  const std::optional<std::string> list = files.Field("proc/self/status", "Cpus_allowed_list");
  return list ? CountOfList(*list) : std::nullopt;
}

Check CpuCheck(const MachineFiles& files) {
  const std::optional<uint64_t> usable = UsableCpus(files);
  const std::optional<std::string> online = files.Line("sys/devices/system/cpu/online");
  const std::string model = files.Field("proc/cpuinfo", "model name").value_or("model unknown");
  if (!usable) {
    return UnknownCheck("CPUs",
                        fmt::format("unknown: /proc/self/status cannot be read ({})", model));
  }
  const std::optional<uint64_t> count = online ? CountOfList(*online) : std::nullopt;
  return OkCheck("CPUs", fmt::format("{} of {} online may be used ({})", *usable,
                                     count ? std::to_string(*count) : "an unknown number", model));
}

Check CpuQuotaCheck(const MachineFiles& files) {
  if (!files.Exists("proc/self/cgroup")) {
    return UnknownCheck("CPU quota", "unknown: /proc/self/cgroup cannot be read");
  }
  const std::optional<double> quota = CpuQuota(files.root());
  if (!quota) return OkCheck("CPU quota", "none");
  const std::optional<uint64_t> usable = UsableCpus(files);
  std::string found = fmt::format("{:.2f} CPUs' time", *quota);
  if (!usable || *quota >= static_cast<double>(*usable)) return OkCheck("CPU quota", found);
  return WarnCheck("CPU quota", fmt::format("{} for {} CPUs", found, *usable),
                   "threads that use it up are stopped until the next period; raise the "
                   "container's quota (docker run --cpus) or give it fewer CPUs");
}

Check NumaCheck(const MachineFiles& files) {
  const std::optional<std::string> list = files.Line("sys/devices/system/node/online");
  const std::optional<uint64_t> count = list ? CountOfList(*list) : std::nullopt;
  if (!count) {
    return UnknownCheck("NUMA", "unknown: /sys/devices/system/node/online cannot be read");
  }
  return OkCheck("NUMA", *count == 1 ? "one node" : fmt::format("{} nodes ({})", *count, *list));
}

Check MemoryCheck(const MachineFiles& files) {
  const Result<MachineMemory> memory = ReadMachineMemory(files.root());
  if (!memory.ok()) return UnknownCheck("memory", "unknown: " + memory.error().message);
  std::string found =
      fmt::format("{} available of {}", ToString(memory->available), ToString(memory->total));
  if (memory->available >= kLittleMemory) return OkCheck("memory", std::move(found));
  return WarnCheck("memory", std::move(found),
                   "that is little for host memory and the program itself; end other programs, or "
                   "give --host-memory");
}

Check MemoryLimitCheck(const MachineFiles& files) {
  const std::string name = "memory limit";
  if (!files.Exists("proc/self/cgroup")) {
    return UnknownCheck(name, "unknown: /proc/self/cgroup cannot be read");
  }
  const std::optional<GroupLimit> lowest = LowestLimit(files);
  if (!lowest) return OkCheck(name, "no control group sets one, or none is visible");
  const std::string found =
      fmt::format("{} by the control group {}", ToString(lowest->limit), lowest->group);
  if (lowest->limit >= kLittleLimit) return OkCheck(name, found);
  return WarnCheck(name, found,
                   "the kernel ends the program beyond it; give --host-memory, or raise the "
                   "container's limit (docker run --memory)");
}

Check HugePageCheck(const MachineFiles& files) {
  const std::string path = "sys/kernel/mm/transparent_hugepage/enabled";
  const std::optional<std::string> line = files.Line(path);
  if (!line) return UnknownCheck("huge pages", "unknown: /" + path + " cannot be read");
  if (line->find("[never]") == std::string::npos) return OkCheck("huge pages", *line);
  return WarnCheck(
      "huge pages", *line,
      "host memory has pages of 4 KiB, which cost transfers time; echo madvise > /" + path);
}

Checks MachineChecks(const MachineFiles& files) {
  return {KernelCheck(files), CpuCheck(files),         CpuQuotaCheck(files), NumaCheck(files),
          MemoryCheck(files), MemoryLimitCheck(files), HugePageCheck(files)};
}

}  // namespace penstock::train
