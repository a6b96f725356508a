#include "train/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/control_groups.h"
#include "zero/engine.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

Error TooSmall(const char* memory, const char* option, Bytes limit, Bytes minimum,
               const std::string& sum) {
  return MakeError(ErrorCode::kBudget,
                   "{} memory of {} bytes is too small: {} = {} bytes; the smallest that works is "
                   "--{} {}",
                   memory, limit.value, sum, minimum.value, option, minimum.value);
}

/// Of a GPU's memory, for code that CUDA and its libraries load when it is first used.
constexpr Bytes kGpuReserve = 1_GiB;

Bytes DefaultDeviceMemory(const MachineMemory& memory) {
  if (!memory.gpu.has_value()) return Bytes{memory.total.value / 2};
  return *memory.gpu - std::min(kGpuReserve, Bytes{memory.gpu->value / 2});
}

Bytes RoundDown(Bytes size, Bytes alignment) {
  return Bytes{size.value / alignment.value * alignment.value};
}

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
    return MakeError(ErrorCode::kIo,
                     "{} does not say how much memory there is; name it with --device-memory and "
                     "--host-memory",
                     path);
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

kernels::OperatorOptions OperatorsFor(const Gpt2Config& model, const Gpt2Shape& shape,
                                      const zero::Config& config) {
  kernels::OperatorOptions options;
  options.dtype = config.dtype;
  options.threads = config.compute_threads;
  options.shapes = Gpt2OperatorShapes(model, shape);
  return options;
}

Result<MemoryNeeds> PlanMemory(const zero::ModelSpec& spec, const Gpt2Config& model,
                               const Gpt2Shape& shape, const zero::Config& config,
                               device::Kind kind) {
  const zero::MemoryPlan plan = zero::Engine::Plan(spec, config);
  const ActivationBytes taken = Gpt2::Memory(model, shape, config.dtype);
  const Bytes activations = AlignUp(taken.device, device::kDeviceAlignment);
  PENSTOCK_ASSIGN(Bytes scratch,
                  kernels::OperatorScratch(kind, OperatorsFor(model, shape, config)));
  scratch = AlignUp(scratch, device::kDeviceAlignment);
  MemoryNeeds needs;
  needs.device_reserved = activations + scratch;
  needs.device_minimum =
      AlignUp(plan.device_minimum, device::kDeviceAlignment) + needs.device_reserved;
  needs.host_reserved = taken.host;
  needs.host_minimum = plan.host_minimum + taken.host;
  needs.device_sum = fmt::format("{} + activations {} + operator scratch {}", plan.device_sum,
                                 ToString(activations), ToString(scratch));
  needs.host_sum = plan.host_sum;
  if (taken.host.value > 0) {
    needs.host_sum += fmt::format(" + activation checkpoints {}", ToString(taken.host));
  }
  return needs;
}

Result<MemoryBudget> DecideBudget(const MemoryNeeds& needs, const zero::Config& config,
                                  const std::function<Result<MachineMemory>()>& machine) {
  Bytes device = config.device_memory.value_or(Bytes{});
  Bytes host = config.host_memory.value_or(Bytes{});
  if (!config.device_memory.has_value() || !config.host_memory.has_value()) {
    PENSTOCK_ASSIGN(const MachineMemory memory, machine());
    device = config.device_memory.value_or(DefaultDeviceMemory(memory));
    host = config.host_memory.value_or(Bytes{memory.available.value / 4 * 3});
  }
  const MemoryBudget budget = {.device = RoundDown(device, device::kDeviceAlignment), .host = host};
  if (budget.device < needs.device_minimum) {
    return TooSmall("device", "device-memory", device, needs.device_minimum, needs.device_sum);
  }
  if (budget.host < needs.host_minimum) {
    return TooSmall("host", "host-memory", budget.host, needs.host_minimum, needs.host_sum);
  }
  return budget;
}

}  // namespace penstock::train
