// How long each resource is busy in a step whose bytes are known, and which of them bounds it.
//
// Plain functions.
#pragma once

#include <optional>

#include "sim/drive.h"
#include "train/plan/step_estimate.h"

namespace penstock::train {

enum class StepResource { kCompute, kDrive, kOptimizer, kCopies, kLink };
/// "compute", "drive", "optimizer", "copies", "link".
const char* ToString(StepResource resource);

/// What a step waits for in the end, planned or made: the resource that is busy the longest.
struct LongestFloor {
  double seconds = 0;
  StepResource resource = StepResource::kCompute;
};
/// Finds it among those whose time is known.
LongestFloor LongestOf(const StepFloors& floors);

/// Returns the speed of a drive that is given in GB/s (10^9 bytes a second). One that reads and
/// writes share has the speed of reading for both.
sim::DriveSpeed DriveOf(double read_gbps, double write_gbps, bool shared);

/// Returns the time of a drive for the bytes of a step: 0 if there are none, nothing if its speed
/// is not known.
std::optional<double> DriveTime(double read_bytes, double write_bytes,
                                const std::optional<sim::DriveSpeed>& speed);

/// Returns how many times as long computation takes on the CPU device if its threads have to share
/// fewer cores, those of this rank; else 1.
double SlowedBy(const PlannedTraining& training, const MachineSpeed& speed);

/// Sets the floors of a step, and the highest if compute and drive are known.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step);

}  // namespace penstock::train
