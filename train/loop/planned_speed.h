// The speeds that a plan counts with: those that were given, and those that can be measured here in
// passing.
//
// Threads: the main thread, while nothing else computes.
#pragma once

#include <string>

#include "base/result.h"
#include "train/loop/plan_command.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"

namespace penstock::train {

struct PlannedSpeed {
  MachineSpeed machine;
  std::string origin;  ///< where each comes from, and what is missing, in words
};

/// Errors: kInvalidArgument for a file of --tune without speeds; kOutOfMemory.
Result<PlannedSpeed> FindSpeed(const PlanCommand& command, const PlannedTraining& training);

}  // namespace penstock::train
