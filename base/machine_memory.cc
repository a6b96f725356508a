#include "base/machine_memory.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/control_groups.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

Result<MachineMemory> ReadMeminfo(const std::string& path) {
  std::ifstream in(path);
  std::optional<Bytes> total;
  std::optional<Bytes> available;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t kibibytes = 0;
    if (!(words >> name >> kibibytes)) continue;
    if (name == "MemTotal:") total = Bytes{kibibytes * 1024};
    if (name == "MemAvailable:") available = Bytes{kibibytes * 1024};
  }
  if (!total.has_value() || !available.has_value()) {
    return MakeError(ErrorCode::kIo, "{} does not say how much memory there is", path);
  }
  return MachineMemory{*total, *available};
}

/// The number in a file of a control group; none where there is no file or "max".
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream in(path);
  uint64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

/// Page cache that the kernel gives up before it refuses memory: "inactive_file", of version 1 with
/// that of the groups below behind it.
uint64_t ReclaimableCache(const fs::path& path) {
  std::ifstream in(path);
  std::string name;
  uint64_t cache = 0;
  for (uint64_t value = 0; in >> name >> value;) {
    if (name == "inactive_file" || name == "total_inactive_file") cache = value;
  }
  return cache;
}

/// What a control group leaves of its limit; none where it has none. The names of a file are those
/// of version 2 and of version 1.
std::optional<Bytes> RoomIn(const fs::path& group) {
  const auto read = [&group](const char* name, const char* old_name) {
    const std::optional<uint64_t> number = ReadNumber(group / name);
    return number.has_value() ? number : ReadNumber(group / old_name);
  };
  const std::optional<uint64_t> limit = read("memory.max", "memory.limit_in_bytes");
  const std::optional<uint64_t> current = read("memory.current", "memory.usage_in_bytes");
  if (!limit.has_value() || !current.has_value()) return std::nullopt;
  const uint64_t used = *current - std::min(*current, ReclaimableCache(group / "memory.stat"));
  return Bytes{*limit - std::min(*limit, used)};
}

}  // namespace

Result<MachineMemory> ReadMachineMemory(const std::string& root) {
  PENSTOCK_ASSIGN(MachineMemory memory, ReadMeminfo(fs::path(root) / "proc/meminfo"));
  for (const fs::path& group : ControlGroups("memory", root)) {
    const std::optional<Bytes> room = RoomIn(group);
    if (!room.has_value()) continue;
    memory.total = std::min(memory.total, *room);
    memory.available = std::min(memory.available, *room);
  }
  return memory;
}

}  // namespace penstock
