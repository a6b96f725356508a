#include "train/budget.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "zero/engine.h"

namespace penstock::train {
namespace {

Error TooSmall(const char* memory, const char* option, Bytes limit, Bytes minimum,
               const std::string& sum) {
  return MakeError(ErrorCode::kBudget,
                   "{} memory of {} bytes is too small: {} = {} bytes; the smallest that works is "
                   "--{} {}",
                   memory, limit.value, sum, minimum.value, option, minimum.value);
}

Bytes RoundDown(Bytes size, Bytes alignment) {
  return Bytes{size.value / alignment.value * alignment.value};
}

}  // namespace

Result<MachineMemory> ReadMachineMemory(const std::string& path) {
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
  const Bytes activations =
      AlignUp(Gpt2::ActivationBytes(model, shape, config.dtype), device::kDeviceAlignment);
  PENSTOCK_ASSIGN(Bytes scratch,
                  kernels::OperatorScratch(kind, OperatorsFor(model, shape, config)));
  scratch = AlignUp(scratch, device::kDeviceAlignment);
  MemoryNeeds needs;
  needs.device_reserved = activations + scratch;
  needs.device_minimum =
      AlignUp(plan.device_minimum, device::kDeviceAlignment) + needs.device_reserved;
  needs.host_minimum = plan.host_minimum;
  needs.device_sum = fmt::format("{} + activations {} + operator scratch {}", plan.device_sum,
                                 ToString(activations), ToString(scratch));
  needs.host_sum = plan.host_sum;
  return needs;
}

Result<MemoryBudget> DecideBudget(const MemoryNeeds& needs, const zero::Config& config,
                                  const MachineMemory& machine) {
  MemoryBudget budget;
  const Bytes device = config.device_memory.value_or(Bytes{machine.total.value / 2});
  budget.device = RoundDown(device, device::kDeviceAlignment);
  budget.host = config.host_memory.value_or(Bytes{machine.available.value / 4 * 3});
  if (budget.device < needs.device_minimum) {
    return TooSmall("device", "device-memory", device, needs.device_minimum, needs.device_sum);
  }
  if (budget.host < needs.host_minimum) {
    return TooSmall("host", "host-memory", budget.host, needs.host_minimum, needs.host_sum);
  }
  return budget;
}

}  // namespace penstock::train
