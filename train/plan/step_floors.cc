#include "train/plan/step_floors.h"

#include <algorithm>
#include <array>

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

std::optional<double> LinkTime(const StepEstimate& step, const MachineSpeed& speed) {
  if (step.link_bytes == 0) return 0.0;
  if (!speed.link) return {};
  return static_cast<double>(step.link_bytes) / speed.link->bytes_a_second;
}

}  // namespace

const char* ToString(StepResource resource) {
  switch (resource) {
    case StepResource::kCompute:
      return "compute";
    case StepResource::kDrive:
      return "drive";
    case StepResource::kOptimizer:
      return "optimizer";
    case StepResource::kCopies:
      return "copies";
    case StepResource::kLink:
      return "link";
  }
  return "?";
}

LongestFloor LongestOf(const StepFloors& floors) {
  const std::array<LongestFloor, 5> all = {
      LongestFloor{floors.compute.value_or(0), StepResource::kCompute},
      LongestFloor{floors.drive.value_or(0), StepResource::kDrive},
      LongestFloor{floors.update.value_or(0), StepResource::kOptimizer},
      LongestFloor{floors.copies.value_or(0), StepResource::kCopies},
      LongestFloor{floors.link.value_or(0), StepResource::kLink}};
  return *std::ranges::max_element(all, {}, &LongestFloor::seconds);
}

sim::DriveSpeed DriveOf(double read_gbps, double write_gbps, bool shared) {
  return {.read_bytes_a_second = read_gbps * 1e9,
          .write_bytes_a_second = (shared ? read_gbps : write_gbps) * 1e9,
          .shared = shared};
}

std::optional<double> DriveTime(double read_bytes, double write_bytes,
                                const std::optional<sim::DriveSpeed>& speed) {
  if (read_bytes + write_bytes <= 0) return 0.0;
  if (!speed) return {};
  return sim::TimeOf(*speed, read_bytes, write_bytes);
}

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
            .drive = DriveTime(static_cast<double>(step.read_bytes),
                               static_cast<double>(step.write_bytes), speed.drive),
            .copies = CopyTime(step, speed),
            .link = LinkTime(step, speed)};
  if (updates) floors.update = updates->Time();
  if (!floors.compute || !floors.drive) return;
  const LongestFloor longest = LongestOf(floors);
  step.floor_s = longest.seconds;
  step.bound_by = ToString(longest.resource);
  if (training.kind != device::Kind::kCpu) return;
  const double computing =
      *floors.compute * std::min<double>(training.config.compute_threads, speed.cores);
  const double updating = updates ? updates->seconds : 0;
  const double moving = floors.copies.value_or(0) +
                        static_cast<double>(step.read_bytes + step.write_bytes) * speed.io_byte;
  const double shared = (computing + updating + moving) / speed.cores;
  if (shared <= longest.seconds) return;
  step.floor_s = shared;
  step.bound_by =
      ToString(computing >= updating ? StepResource::kCompute : StepResource::kOptimizer);
}

}  // namespace penstock::train
