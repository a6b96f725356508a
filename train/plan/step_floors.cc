#include "train/plan/step_floors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "train/plan/compute_cost.h"

namespace penstock::train {
namespace {

/// Updates on the CPU, all tiles one after the other on one thread.
double UpdateWork(const PlannedTraining& training, const offload::ShardLayout& layout,
                  const MachineSpeed& speed) {
  // A GPU updates resident states itself.
  if (zero::IsResident(training.config) && training.kind != device::Kind::kCpu) return 0;
  return static_cast<double>(layout.shard_elements()) * (speed.update_element + speed.norm_element);
}

std::optional<double> UpdateTime(const PlannedTraining& training, double work,
                                 const MachineSpeed& speed) {
  const bool cpu = training.kind == device::Kind::kCpu;
  if (!zero::IsResident(training.config)) {
    const double threads = training.config.optimizer_threads;
    return work / std::max(1.0, cpu ? std::min(threads, speed.cores) : threads);
  }
  if (!cpu) return {};
  const double threads = training.config.compute_threads;
  return work / std::max(1.0, std::min(threads, speed.cores));
}

std::optional<double> ComputeTime(const PlannedTraining& training,
                                  const offload::ShardLayout& layout, const MachineSpeed& speed) {
  if (!speed.layer_flops || !speed.head_flops) return {};
  double sum = 0;
  for (const sim::Seconds use : ComputeOfUses(training, layout.model, speed)) sum += use;
  return sum;
}

std::optional<double> CopyTime(const StepEstimate& step, const MachineSpeed& speed) {
  const auto copied = static_cast<double>(step.to_device_bytes + step.to_host_bytes);
  if (!speed.copy_byte && copied > 0) return {};
  return copied * speed.copy_byte.value_or(0);
}

std::optional<double> DriveTime(const StepEstimate& step, const MachineSpeed& speed) {
  if (step.read_bytes + step.write_bytes == 0) return 0.0;
  if (!speed.drive) return {};
  return sim::TimeOf(*speed.drive, static_cast<double>(step.read_bytes),
                     static_cast<double>(step.write_bytes));
}

std::optional<double> LinkTime(const StepEstimate& step, const MachineSpeed& speed) {
  if (step.link_bytes == 0) return 0.0;
  if (!speed.link) return {};
  return static_cast<double>(step.link_bytes) / speed.link->bytes_a_second;
}

}  // namespace

/// On the CPU device, everything but drive and link shares the cores.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step) {
  const double updates = UpdateWork(training, layout, speed);
  StepFloors& floors = step.floors;
  floors = {.compute = ComputeTime(training, layout, speed),
            .drive = DriveTime(step, speed),
            .update = UpdateTime(training, updates, speed),
            .copies = CopyTime(step, speed),
            .link = LinkTime(step, speed)};
  if (!floors.compute || !floors.drive) return;
  using Floor = std::pair<double, const char*>;
  const std::array<Floor, 5> all = {
      Floor{*floors.compute, "compute"}, Floor{*floors.drive, "drive"},
      Floor{floors.update.value_or(0), "optimizer"}, Floor{floors.copies.value_or(0), "copies"},
      Floor{floors.link.value_or(0), "link"}};
  const Floor& highest = *std::ranges::max_element(all, {}, &Floor::first);
  step.floor_s = highest.first;
  step.bound_by = highest.second;
  if (training.kind != device::Kind::kCpu) return;
  const double computing = *floors.compute * training.config.compute_threads;
  const double moving = floors.copies.value_or(0) +
                        static_cast<double>(step.read_bytes + step.write_bytes) * speed.io_byte;
  const double shared = (computing + updates + moving) / speed.cores;
  if (shared <= highest.first) return;
  step.floor_s = shared;
  step.bound_by = computing >= updates ? "compute" : "optimizer";
}

}  // namespace penstock::train
