#include "train/plan/setup.h"

#include <algorithm>
#include <thread>

#include "base/cpu_quota.h"
#include "base/topology.h"
#include "run/identity/config_files.h"
#include "zero/plan/thread_plan.h"

namespace penstock::train {

Result<config::Config> ReadConfig(const ConfigChoice& choice, uint32_t ranks) {
  PENSTOCK_ASSIGN(std::vector<config::ConfigSource> sources, ReadConfigFiles(choice.files));
  for (const std::string& text : choice.changes) sources.push_back({"--change", text});
  PENSTOCK_ASSIGN(
      config::Config config,
      config::ParseConfig(sources, ranks, {.flags = choice.auto_flags, .resumed = choice.resumed}));
  if (choice.device_memory.has_value()) config.device_memory = choice.device_memory;
  if (choice.host_memory.has_value()) config.host_memory = choice.host_memory;
  return config;
}

Result<uint64_t> SequenceLength(const std::optional<uint64_t>& given, uint64_t context,
                                const std::string& model) {
  const uint64_t sequence = given.value_or(context);
  if (sequence == 0 || sequence > context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--sequence-length {}: the context of {} has {} positions; give 1 to {}",
                     sequence, model, context, context);
  }
  return sequence;
}

BatchShape ShapeOf(const config::Config& config, uint64_t sequence, uint32_t ranks) {
  return {.micro_batch = config.micro_batch_size,
          .micro_batches = config.gradient_accumulation_steps,
          .sequence = sequence,
          .ranks = ranks,
          .checkpoint_home = config.activation_home};
}

Result<std::optional<Bytes>> FindGpu(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return std::optional<Bytes>();
  const Result<Bytes> free = device::FreeCudaMemory();
  if (free.ok()) return std::optional(*free);
  if (choice == DeviceChoice::kCuda) {
    return Error{free.error().code, "--device cuda: " + free.error().message};
  }
  return std::optional<Bytes>();
}

void ChooseThreads(device::Kind kind, const NodeShare& share, config::Config* config) {
  Result<Topology> machine = ReadTopology();
  // A machine that cannot be looked at has a core for each CPU.
  const unsigned cpus = std::max(std::thread::hardware_concurrency(), 1U);
  if (!machine.ok()) machine = Topology{.cores = std::vector<Core>(cpus), .cpu_quota = CpuQuota()};
  if (machine->cpu_quota) *machine->cpu_quota /= share.sharing;
  const bool open = config->compute_threads == 0;
  if (share.bound) {
    zero::ChooseThreads(*machine, kind, config);
  } else {
    machine->cores = PartOf(machine->cores, 0, share.sharing);
    zero::AssumeThreads(*machine, kind, config);
  }
  if (open && share.most_compute_threads) {
    config->compute_threads = std::min(config->compute_threads, *share.most_compute_threads);
  }
}

}  // namespace penstock::train
