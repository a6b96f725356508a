#include "train/doctor/config_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/dtype.h"
#include "base/machine_memory.h"
#include "base/units.h"
#include "train/doctor/machine_checks.h"

namespace penstock::train {
namespace {

std::string ConfigText(const config::Config& config) {
  std::string text =
      fmt::format("{}, {}, stage {}, {}", config.optimizer.type, ToString(config.dtype),
                  config.zero_stage, config::PlacementText(config));
  if (!config.superseded.empty()) {
    text += fmt::format(", {} keys without an effect here", config.superseded.size());
  }
  if (!config.automatic.empty()) text += fmt::format(", {} \"auto\"", config.automatic.size());
  return text;
}

Check BatchCheck(const config::Config& config) {
  const std::string found =
      fmt::format("{} rows a step ({} x {} micro-batches)", config.train_batch_size,
                  config.micro_batch_size, config.gradient_accumulation_steps);
  if (config.train_batch_size > 1 || !config::UsesNvme(config)) {
    return OkCheck("config batch", found);
  }
  return WarnCheck("config batch", found,
                   "a step moves as many bytes as with a large batch; more rows a step hide the "
                   "drive");
}

std::string OfRanks(uint32_t ranks) {
  return ranks == 1 ? "" : fmt::format(", of each of {} ranks", ranks);
}

Check MemoryNeedCheck(const config::Config& config, const ConfigMachine& machine) {
  const auto text = [](const std::optional<Bytes>& size) {
    return size ? ToString(*size) : std::string("chosen by the program");
  };
  const std::string found =
      fmt::format("device memory {}, host memory {}{}", text(config.device_memory),
                  text(config.host_memory), OfRanks(machine.ranks));
  const Result<MachineMemory> memory = ReadMachineMemory(machine.files.root());
  if (!memory.ok()) return UnknownCheck("config memory", found + "; " + memory.error().message);
  // On a GPU, device memory is its own, and is looked at when a run starts.
  Bytes asked = config.host_memory.value_or(0_B);
  const bool cpu = machine.device == device::Kind::kCpu;
  if (cpu) asked += config.device_memory.value_or(0_B);
  if (asked * machine.ranks <= memory->available) return OkCheck("config memory", found);
  return FailCheck("config memory", found,
                   fmt::format("only {} are available{}; lower penstock.host_memory{}",
                               ToString(memory->available),
                               cpu ? " for device and host memory, as the CPU computes" : "",
                               cpu ? " or penstock.device_memory" : ""));
}

Check ThreadsCheck(const config::Config& config, const ConfigMachine& machine) {
  const auto text = [](int threads) {
    return threads == 0 ? std::string("chosen by the program") : std::to_string(threads);
  };
  const std::string found = fmt::format("compute {}, optimizer {}{}", text(config.compute_threads),
                                        text(config.optimizer_threads), OfRanks(machine.ranks));
  const std::optional<uint64_t> cpus = UsableCpus(machine.files);
  const int of_rank = std::max(config.compute_threads, config.optimizer_threads);
  const uint64_t asked = static_cast<uint64_t>(of_rank) * machine.ranks;
  if (!cpus || asked <= *cpus) return OkCheck("config threads", found);
  return WarnCheck("config threads", found,
                   fmt::format("there are {} CPUs; 0 lets the program choose", *cpus));
}

Check EngineNeedCheck(const config::Config& config, const EngineFacts& engines) {
  const aio::EngineKind kind = config.aio.kind;
  const std::string name = "config engine";
  if (!config::UsesNvme(config)) return OkCheck(name, "nothing lives on nvme");
  const std::string found = fmt::format("{}, blocks of {}, queue depth {}", aio::ToString(kind),
                                        ToString(config.aio.block_size), config.aio.queue_depth);
  const bool uring = kind == aio::EngineKind::kUring || config.aio.sqpoll || config.aio.iopoll;
  const bool missing = (uring && engines.uring.error_number != 0) ||
                       (kind == aio::EngineKind::kLibaio && !engines.libaio.ok()) ||
                       (kind == aio::EngineKind::kThreads && !engines.threads.ok());
  if (!missing) return OkCheck(name, found);
  return FailCheck(name, found + ", which is not to be had here",
                   "set penstock.aio.engine to \"auto\", and sqpoll and iopoll to false");
}

}  // namespace

Check ConfigCheck(const Result<config::Config>& config) {
  if (config.ok()) return OkCheck("config", ConfigText(*config));
  return FailCheck("config", config.error().message, "penstock train says the same");
}

Checks ConfigChecks(const config::Config& config, const ConfigMachine& machine) {
  Checks checks = {BatchCheck(config), MemoryNeedCheck(config, machine),
                   ThreadsCheck(config, machine), EngineNeedCheck(config, machine.engines)};
  if (config.aio.simulate) {
    checks.push_back(WarnCheck("config drive", "penstock.aio.simulate throttles every transfer",
                               "it is for tests; leave it out"));
  }
  return checks;
}

}  // namespace penstock::train
