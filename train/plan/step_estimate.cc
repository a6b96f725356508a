#include "train/plan/step_estimate.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "sim/step.h"
#include "train/plan/compute_cost.h"
#include "zero/partitioner.h"
#include "zero/schedule_builder.h"
#include "zero/step_decision.h"

namespace penstock::train {
namespace {

constexpr uint64_t kWarmUp = 3;
constexpr uint64_t kFewestSteps = 8;
constexpr uint64_t kMostSteps = 64;
constexpr uint64_t kMostSimulatedTiles = 4096;

double Sum(const std::vector<sim::Seconds>& parts) {
  double sum = 0;
  for (const sim::Seconds part : parts) sum += part;
  return sum;
}

/// Weights that a step brings to the device, gradients that it brings back, and what goes between
/// ranks.
void CountCopies(const PlannedTraining& training, const offload::ShardLayout& layout,
                 const offload::Schedule& schedule, StepEstimate& step) {
  const uint32_t ranks = layout.world_size;
  for (const offload::ScheduledUse& use : schedule.uses) {
    if (!use.fetch) continue;
    for (const offload::TileId tile : layout.TilesOf(use.module)) {
      step.to_device_bytes += layout.WeightBytes(tile).value;
    }
    step.link_bytes += sim::SentBytes(sim::GatherParts(layout, use.module), ranks).value;
  }
  step.to_host_bytes = layout.gradient_bytes().value;
  for (const offload::ModuleId module :
       offload::Ids<offload::ModuleId>(layout.model.modules.size())) {
    step.link_bytes += training.shape.micro_batches *
                       sim::SentBytes(sim::ExchangeParts(layout, module), ranks).value;
  }
}

std::optional<double> DriveTime(const StepEstimate& step,
                                const std::optional<sim::DriveSpeed>& drive) {
  if (step.read_bytes + step.write_bytes == 0) return 0.0;
  if (!drive) return {};
  const auto time = [](uint64_t bytes, double speed) {
    return speed > 0 ? static_cast<double>(bytes) / speed : 0;
  };
  if (drive->shared) return time(step.read_bytes + step.write_bytes, drive->read_bytes_a_second);
  return std::max(time(step.read_bytes, drive->read_bytes_a_second),
                  time(step.write_bytes, drive->write_bytes_a_second));
}

/// The floors, and which of them is the highest. On the CPU device, everything but drive and link
/// shares the cores.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step) {
  const auto elements = static_cast<double>(layout.shard_elements());
  StepFloors& floors = step.floors;
  const double work = elements * (speed.update_element + speed.norm_element);
  const bool cpu = training.kind == device::Kind::kCpu;
  const double threads = zero::IsResident(training.config) ? training.config.compute_threads
                                                           : training.config.optimizer_threads;
  floors.update = work / std::max(1.0, cpu ? std::min(threads, speed.cores) : threads);
  const auto copied = static_cast<double>(step.to_device_bytes + step.to_host_bytes);
  if (speed.copy_byte || copied == 0) floors.copies = copied * speed.copy_byte.value_or(0);
  floors.drive = DriveTime(step, speed.drive);
  if (step.link_bytes == 0) floors.link = 0;
  if (speed.link) {
    floors.link = static_cast<double>(step.link_bytes) / speed.link->bytes_a_second;
  }
  if (!floors.compute || !floors.drive) return;
  const auto moved = static_cast<double>(step.read_bytes + step.write_bytes);
  const double shared = *floors.compute * training.config.compute_threads + work +
                        floors.copies.value_or(0) + moved * speed.io_byte;
  using Floor = std::pair<double, const char*>;
  const std::array<Floor, 5> all = {
      Floor{*floors.compute, "compute"}, Floor{*floors.drive, "drive"},
      Floor{floors.update, "optimizer"}, Floor{floors.copies.value_or(0), "copies"},
      Floor{floors.link.value_or(0), "link"}};
  const Floor& highest = *std::ranges::max_element(all, {}, &Floor::first);
  step.floor_s = highest.first;
  step.bound_by = highest.second;
  if (!cpu || shared / speed.cores <= highest.first) return;
  step.floor_s = shared / speed.cores;
  step.bound_by =
      *floors.compute * training.config.compute_threads >= work ? "compute" : "optimizer";
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
  while (layout.tiles.size() > kMostSimulatedTiles && config.tile_elements < (uint64_t{1} << 36)) {
    config.tile_elements *= 4;
    const uint64_t before = layout.tiles.size();
    layout = zero::MakeLayout(training.spec, config, training.world);
    if (layout.tiles.size() == before) break;
  }
  return layout;
}

/// The same shares of blocks and of tiles in host memory.
zero::MemoryPlan CoarsePlan(const offload::ShardLayout& layout, const offload::ShardLayout& coarse,
                            const zero::MemoryPlan& memory) {
  const double factor =
      static_cast<double>(coarse.tiles.size()) / static_cast<double>(layout.tiles.size());
  const auto scaled = [&](uint64_t count, uint64_t least) {
    return std::max(least, static_cast<uint64_t>(static_cast<double>(count) * factor));
  };
  zero::MemoryPlan plan = memory;
  plan.store.host_tiles = scaled(memory.store.host_tiles, 0);
  plan.store.weight_blocks = scaled(memory.store.weight_blocks, 2);
  plan.store.record_blocks = scaled(memory.store.record_blocks, 1);
  return plan;
}

sim::Machine MachineOf(const PlannedTraining& training, const MachineSpeed& speed) {
  const config::Config& config = training.config;
  sim::DriveSpeed drive = speed.drive.value_or(sim::DriveSpeed());
  drive.block = config.aio.block_size;
  drive.queue_depth = config.aio.queue_depth;
  const bool cpu = training.kind == device::Kind::kCpu;
  return {.cores = speed.cores,
          .compute_threads = cpu ? config.compute_threads : 0,
          .optimizer_threads = std::max(1, config.optimizer_threads),
          .update_element = speed.update_element,
          .norm_element = speed.norm_element,
          .copy_byte = speed.copy_byte.value_or(0),
          .io_byte = speed.io_byte,
          .drive = drive,
          .link = speed.link.value_or(sim::LinkSpeed())};
}

/// A step leaves some of its work to the next, and steps differ in how much: only among many does
/// that not count. More of them where they are quickly gone through.
uint64_t CountedSteps(const offload::ShardLayout& layout) {
  return std::clamp(kFewestSteps * kMostSimulatedTiles / layout.tiles.size(), kFewestSteps,
                    kMostSteps);
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
                          .gradient_buffers = memory.gradient_buffers},
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
  const zero::MemoryPlan plan = CoarsePlan(layout, coarse, memory);
  return Simulate(training, coarse, ScheduleOf(training, coarse, plan), plan, speed);
}

}  // namespace

StepEstimate EstimateStep(const PlannedTraining& training, const offload::ShardLayout& layout,
                          const zero::MemoryPlan& memory, const MachineSpeed& speed) {
  StepEstimate step;
  const bool known = speed.layer_flops && speed.head_flops;
  if (known) step.floors.compute = Sum(ComputeOfUses(training, layout.model, speed));
  if (zero::IsResident(training.config)) {
    SetFloors(training, layout, speed, step);
    if (known) step.step_s = *step.floors.compute + step.floors.update;
    return step;
  }
  const offload::Schedule schedule = ScheduleOf(training, layout, memory);
  CountCopies(training, layout, schedule, step);
  const sim::StepTime mean = layout.tiles.size() <= kMostSimulatedTiles
                                 ? Simulate(training, layout, schedule, memory, speed)
                                 : SimulateCoarsely(training, layout, memory, speed);
  step.read_bytes = mean.read_bytes;
  step.write_bytes = mean.write_bytes;
  SetFloors(training, layout, speed, step);
  // sim/ leaves out the exchange of gradients that no use of their own computes: of positions and
  // the last norm.
  if (step.floor_s) step.step_s = std::max(mean.step, *step.floor_s);
  return step;
}

}  // namespace penstock::train
