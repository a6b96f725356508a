#include "train/loop/plan_command.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file_system.h"
#include "train/loop/planned_model.h"
#include "train/loop/trainer_job.h"
#include "train/plan/plan_report.h"
#include "train/plan/run_plan.h"
#include "train/process/files.h"

namespace penstock::train {
namespace {

TrainOptions OptionsOf(const PlanCommand& command) {
  TrainOptions options{.model = command.model, .configs = command.configs};
  if (!command.speed.tune.empty()) options.configs.push_back(command.speed.tune);
  options.device = command.device;
  options.device_memory = command.device_memory;
  options.host_memory = command.host_memory;
  options.sequence_length = command.sequence_length;
  return options;
}

/// The first of the ranks, which has the largest share.
Result<comm::World> WorldOf(const PlanCommand& command) {
  if (command.ranks % command.nodes != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--nodes {} does not divide --ranks {}: every node has as many ranks",
                     command.nodes, command.ranks);
  }
  return comm::World{.size = command.ranks, .local_size = command.ranks / command.nodes};
}

/// A GPU that is planned for need not be here.
Result<std::optional<Bytes>> GpuOf(const PlanCommand& command) {
  const Result<std::optional<Bytes>> gpu = FindGpu(command.device);
  if (gpu.ok() || command.device != DeviceChoice::kCuda) return gpu;
  return std::optional<Bytes>();
}

Result<MemoryLimits> LimitsOf(const config::Config& config, device::Kind kind,
                              const std::optional<Bytes>& gpu, uint32_t local_ranks) {
  MemoryLimits limits;
  const auto machine = [&] { return ReadOfferedMemory(gpu, local_ranks); };
  PENSTOCK_ASSIGN(const MemoryBudget taken, TakeLimits(config, machine));
  limits.host = taken.host;
  // Of a GPU that is not here only a limit that was given is known.
  if (kind == device::Kind::kCpu || gpu || config.device_memory) limits.device = taken.device;
  for (const std::string& path : config.nvme_paths) {
    const Result<Bytes> free = FreeSpace(path);
    if (free.ok()) limits.drive = limits.drive.value_or(Bytes{}) + *free;
  }
  return limits;
}

}  // namespace

Result<std::string> MakePlanReport(const PlanCommand& command) {
  const TrainOptions options = OptionsOf(command);
  PENSTOCK_ASSIGN(const PlannedModel model, ReadPlannedModel(command.model));
  PENSTOCK_ASSIGN(const comm::World world, WorldOf(command));
  PENSTOCK_ASSIGN(config::Config config, ReadConfig(options, world.size));
  PENSTOCK_ASSIGN(const std::optional<Bytes> gpu, GpuOf(command));
  const bool cuda = gpu || command.device == DeviceChoice::kCuda;
  const device::Kind kind = cuda ? device::Kind::kCuda : device::Kind::kCpu;
  ChooseThreads(kind, {.sharing = world.local_size}, &config);
  PENSTOCK_ASSIGN(const uint64_t sequence,
                  SequenceLength(options, model.description->sizes().positions, model.name));
  PENSTOCK_ASSIGN(const MemoryLimits limits, LimitsOf(config, kind, gpu, world.local_size));
  const zero::ModelSpec spec = model.description->Spec();
  const PlannedTraining training{.spec = spec,
                                 .model = *model.description,
                                 .shape = ShapeOf(config, sequence, world.size),
                                 .config = config,
                                 .kind = kind,
                                 .world = world};
  PENSTOCK_ASSIGN(const PlannedSpeed speed, FindSpeed(command.speed, training));
  PENSTOCK_ASSIGN(const RunPlan plan, PlanRun(training, limits, speed.machine));
  const PlannedSetup setup{.model = model.name,
                           .device = cuda ? "cuda" : "cpu",
                           .speeds = speed.origin,
                           .config = config,
                           .sequence = sequence,
                           .ranks = world.size,
                           .stands_in = model.stands_in};
  return command.json ? ToJson(setup, plan).dump(2) + "\n" : ToText(setup, plan);
}

}  // namespace penstock::train
