// How long each resource is busy in a step whose bytes are known, and which of them bounds it.
//
// Plain functions.
#pragma once

#include "train/plan/step_estimate.h"

namespace penstock::train {

/// Sets the floors of a step, and the highest if compute and drive are known.
void SetFloors(const PlannedTraining& training, const offload::ShardLayout& layout,
               const MachineSpeed& speed, StepEstimate& step);

}  // namespace penstock::train
