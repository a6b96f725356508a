#include "train/plan/step_estimate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/resident.h"
#include "sim/step.h"
#include "train/plan/compute_cost.h"
#include "train/plan/step_floors.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/schedule_builder.h"
#include "zero/plan/step_decision.h"

namespace penstock::train {
namespace {

constexpr uint64_t kWarmUp = 3;
constexpr uint64_t kFewestSteps = 8;
constexpr uint64_t kMaxSteps = 64;
constexpr uint64_t kMaxSimulatedTiles = 4096;
/// For each drive: see zero/engine/memory_plan.cc.
constexpr uint64_t kBusyBlocks = 6;

zero::ExchangeOptions ExchangeOf(const PlannedTraining& training, const zero::MemoryPlan& memory) {
  return zero::ExchangeOptions::Of(training.config, memory.gradient_buffers);
}

/// What is sent to other ranks: gradients, and weights in each of the fetches.
void CountSent(const PlannedTraining& training, const offload::ShardLayout& layout,
               const zero::ExchangeOptions& exchange, const std::vector<offload::ModuleId>& fetched,
               StepEstimate& step) {
  const uint32_t ranks = layout.world_size;
  Bytes weights;
  for (const offload::ModuleId module : fetched) {
    weights += sim::SentBytes(sim::GatherParts(layout, module), ranks);
  }
  Bytes gradient;
  for (const offload::ModuleId module :
       offload::Ids<offload::ModuleId>(layout.model.modules.size())) {
    gradient += sim::SentBytes(sim::ExchangeParts(layout, module, exchange.dtype), ranks);
  }
  const uint64_t exchanges = exchange.ExchangesPerStep(training.shape.micro_batches);
  const bool once = exchange.order == config::GradientOrder::kRank;
  step.link_bytes = (weights + gradient * exchanges).value;
  step.fixed_link_bytes = (once ? weights + gradient : weights).value;
}

/// Modules whose weights a step brings to the device, as often as it does.
std::vector<offload::ModuleId> Fetched(const offload::Schedule& schedule) {
  std::vector<offload::ModuleId> modules;
  for (const offload::ScheduledUse& use : schedule.uses) {
    if (use.fetch) modules.push_back(use.module);
  }
  return modules;
}

/// The same of weights that stay there: each module's are completed once, if it is used.
std::vector<offload::ModuleId> Completed(const zero::ModelSpec& spec) {
  std::vector<offload::ModuleId> modules;
  for (const zero::ModuleUse& use : spec.step) {
    if (std::ranges::find(modules, use.module) == modules.end()) modules.push_back(use.module);
  }
  return modules;
}

offload::Schedule ScheduleOf(const PlannedTraining& training, const offload::ShardLayout& layout,
                             const zero::MemoryPlan& memory) {
  return zero::BuildSchedule(training.spec, layout, memory.shared_slots,
                             zero::StartOfUpdates(training.config));
}

/// A layout that sim/ goes through quickly. Tiles that are larger by a factor move the same bytes,
/// and less finely.
offload::ShardLayout CoarseLayout(const PlannedTraining& training, offload::ShardLayout layout) {
  config::Config config = training.config;
  while (layout.tiles.size() > kMaxSimulatedTiles && config.tile_elements < (uint64_t{1} << 36)) {
    config.tile_elements *= 4;
    const uint64_t before = layout.tiles.size();
    layout = zero::MakeLayout(training.spec, config, training.world);
    if (layout.tiles.size() == before) break;
  }
  return layout;
}

size_t PathCount(const config::Config& config) {
  return std::max<size_t>(1, config.nvme_paths.size());
}

/// The same shares of blocks and of tiles in host memory, but as many blocks as keep the drives
/// busy, for any tile size.
zero::MemoryPlan CoarsePlan(const PlannedTraining& training, const offload::ShardLayout& layout,
                            const offload::ShardLayout& coarse, const zero::MemoryPlan& memory) {
  const double factor =
      static_cast<double>(coarse.tiles.size()) / static_cast<double>(layout.tiles.size());
  const auto scaled = [&](uint64_t count, uint64_t least) {
    return std::max(std::min(least, count),
                    static_cast<uint64_t>(static_cast<double>(count) * factor));
  };
  const uint64_t busy = kBusyBlocks * PathCount(training.config);
  zero::MemoryPlan plan = memory;
  plan.store.host_tiles = scaled(memory.store.host_tiles, 0);
  plan.store.weight_blocks = scaled(memory.store.weight_blocks, busy);
  plan.store.record_blocks = scaled(memory.store.record_blocks, busy);
  return plan;
}

sim::Machine MachineOf(const PlannedTraining& training, const MachineSpeed& speed) {
  const config::Config& config = training.config;
  sim::DriveSpeed drive = speed.drive.value_or(sim::DriveSpeed());
  drive.block = config.aio.block_size;
  drive.queue_depth = config.aio.queue_depth;
  drive.read_bytes_a_second /= static_cast<double>(PathCount(config));
  drive.write_bytes_a_second /= static_cast<double>(PathCount(config));
  const bool cpu = training.kind == device::Kind::kCpu;
  return {.cores = speed.cores,
          .compute_threads = cpu ? config.compute_threads : 0,
          .optimizer_threads = std::max(1, config.optimizer_threads),
          .update_element = speed.update_element,
          .norm_element = speed.norm_element,
          .copy_byte = speed.copy_byte.value_or(0),
          .io_byte = speed.io_byte,
          .drive = drive,
          .drives = PathCount(config),
          .link = speed.link.value_or(sim::LinkSpeed())};
}

/// A step leaves some of its work to the next, and steps differ in how much: only among many does
/// that not count. More of them where they are quickly gone through.
uint64_t CountedSteps(const offload::ShardLayout& layout) {
  return std::clamp(kFewestSteps * kMaxSimulatedTiles / layout.tiles.size(), kFewestSteps,
                    kMaxSteps);
}

/// The mean of steps in the steady state.
sim::StepTime Simulate(const PlannedTraining& training, const offload::ShardLayout& layout,
                       const offload::Schedule& schedule, const zero::MemoryPlan& memory,
                       const MachineSpeed& speed) {
  const uint64_t counted = CountedSteps(layout);
  const std::vector<sim::StepTime> steps =
      sim::SimulateSteps({.layout = layout,
                          .schedule = schedule,
                          .gradients = training.spec.gradients,
                          .updates = zero::StartOfUpdates(training.config),
                          .store = memory.store,
                          .compute = ComputeOfUses(training, layout.model, speed),
                          .micro_batches = training.shape.micro_batches,
                          .exchange = ExchangeOf(training, memory),
                          .staging = zero::GradientStaging(training.spec, layout, memory)},
                         MachineOf(training, speed), kWarmUp + counted);
  sim::StepTime mean;
  for (uint64_t i = kWarmUp; i < steps.size(); ++i) {
    mean.step += steps[i].step / static_cast<double>(counted);
    mean.read_bytes += steps[i].read_bytes;
    mean.write_bytes += steps[i].write_bytes;
  }
  mean.read_bytes /= counted;
  mean.write_bytes /= counted;
  return mean;
}

sim::StepTime SimulateCoarsely(const PlannedTraining& training, const offload::ShardLayout& layout,
                               const zero::MemoryPlan& memory, const MachineSpeed& speed) {
  const offload::ShardLayout coarse = CoarseLayout(training, layout);
  const zero::MemoryPlan plan = CoarsePlan(training, layout, coarse, memory);
  return Simulate(training, coarse, ScheduleOf(training, coarse, plan), plan, speed);
}

/// Weights and states that live on the device.
StepEstimate EstimateResident(const PlannedTraining& training, const offload::ShardLayout& layout,
                              const zero::MemoryPlan& memory, const MachineSpeed& speed) {
  StepEstimate step;
  const zero::ExchangeOptions exchange = ExchangeOf(training, memory);
  CountSent(training, layout, exchange, Completed(training.spec), step);
  SetFloors(training, layout, speed, step);
  if (!step.floor_s) return step;
  std::vector<sim::Seconds> compute = ComputeOfUses(training, layout.model, speed);
  for (sim::Seconds& use : compute) use *= SlowedBy(training, speed);
  const double predicted = sim::ResidentStep({.model = training.spec,
                                              .layout = layout,
                                              .compute = std::move(compute),
                                              .update = step.floors.update.value_or(0),
                                              .overlap = training.config.overlap,
                                              .micro_batches = training.shape.micro_batches,
                                              .exchange = exchange},
                                             speed.link.value_or(sim::LinkSpeed()));
  step.step_s = std::max(predicted, *step.floor_s);
  return step;
}

StepEstimate EstimateOffloaded(const PlannedTraining& training, const offload::ShardLayout& layout,
                               const zero::MemoryPlan& memory, const MachineSpeed& speed) {
  StepEstimate step;
  const offload::Schedule schedule = ScheduleOf(training, layout, memory);
  const std::vector<offload::ModuleId> fetched = Fetched(schedule);
  for (const offload::ModuleId module : fetched) {
    for (const offload::TileId tile : layout.TilesOf(module)) {
      step.to_device_bytes += layout.WeightBytes(tile).value;
    }
  }
  step.to_host_bytes = layout.gradient_bytes().value;
  CountSent(training, layout, ExchangeOf(training, memory), fetched, step);
  const sim::StepTime mean = layout.tiles.size() <= kMaxSimulatedTiles
                                 ? Simulate(training, layout, schedule, memory, speed)
                                 : SimulateCoarsely(training, layout, memory, speed);
  step.read_bytes = mean.read_bytes;
  step.write_bytes = mean.write_bytes;
  SetFloors(training, layout, speed, step);
  if (step.floor_s) step.step_s = std::max(mean.step, *step.floor_s);
  return step;
}

}  // namespace

/// sim/ leaves out the exchange of gradients that no use of their own computes: of positions and
/// the last norm. The floors have it.
StepEstimate EstimateStep(const PlannedTraining& training, const offload::ShardLayout& layout,
                          const zero::MemoryPlan& memory, const MachineSpeed& speed) {
  return zero::IsResident(training.config) ? EstimateResident(training, layout, memory, speed)
                                           : EstimateOffloaded(training, layout, memory, speed);
}

}  // namespace penstock::train
