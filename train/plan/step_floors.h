// How long each resource is busy in a step whose bytes are known, and which of them bounds it.
//
// Plain functions.
#pragma once

#include "train/plan/step_estimate.h"

namespace penstock::train {

/// Returns how many times as long computation takes on the CPU device if its threads have to share
/// fewer cores, those of this rank; else 1.
double SlowedBy(const PlannedTraining& training, const MachineSpeed& speed);

/// Sets the floors of a step, and the highest if compute and drive are known.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step);

}  // namespace penstock::train
