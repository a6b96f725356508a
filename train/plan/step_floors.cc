#include "train/plan/step_floors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "train/plan/compute_cost.h"

namespace penstock::train {
namespace {

/// Work of the processor: seconds of one thread, and on how many threads it is done.
struct Work {
  double seconds = 0;
  double threads = 1;

  double Time() const { return seconds / threads; }
};

/// Nothing: a GPU updates resident states itself.
std::optional<Work> Updates(const PlannedTraining& training, const offload::ShardLayout& layout,
                            const MachineSpeed& speed) {
  const bool resident = zero::IsResident(training.config);
  const bool cpu = training.kind == device::Kind::kCpu;
  if (resident && !cpu) return {};
  const config::Config& config = training.config;
  const double threads = std::max(1, resident ? config.compute_threads : config.optimizer_threads);
  return Work{.seconds = static_cast<double>(layout.shard_elements()) *
                         (speed.update_element + speed.norm_element),
              .threads = cpu ? std::min(threads, speed.cores) : threads};
}

std::optional<double> ComputeTime(const PlannedTraining& training,
                                  const offload::ShardLayout& layout, const MachineSpeed& speed) {
  if (!speed.layer_flops || !speed.head_flops) return {};
  double sum = 0;
  for (const sim::Seconds use : ComputeOfUses(training, layout.model, speed)) sum += use;
  return sum * SlowedBy(training, speed);
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

double SlowedBy(const PlannedTraining& training, const MachineSpeed& speed) {
  if (training.kind != device::Kind::kCpu) return 1;
  return std::max(1.0, training.config.compute_threads / speed.cores);
}

/// On the CPU device, everything but drive and link shares the cores.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step) {
  const std::optional<Work> updates = Updates(training, layout, speed);
  StepFloors& floors = step.floors;
  floors = {.compute = ComputeTime(training, layout, speed),
            .drive = DriveTime(step, speed),
            .copies = CopyTime(step, speed),
            .link = LinkTime(step, speed)};
  if (updates) floors.update = updates->Time();
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
  const double computing =
      *floors.compute * std::min<double>(training.config.compute_threads, speed.cores);
  const double updating = updates ? updates->seconds : 0;
  const double moving = floors.copies.value_or(0) +
                        static_cast<double>(step.read_bytes + step.write_bytes) * speed.io_byte;
  const double shared = (computing + updating + moving) / speed.cores;
  if (shared <= highest.first) return;
  step.floor_s = shared;
  step.bound_by = computing >= updating ? "compute" : "optimizer";
}

}  // namespace penstock::train
