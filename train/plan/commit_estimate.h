// What a commit writes and reads back beside the steps, and by how much it lengthens them.
//
// Plain functions.
#pragma once

#include <optional>

#include "base/units.h"
#include "offload/layout.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"
#include "train/plan/step_estimate.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/commit_verification.h"

namespace penstock::train {

/// Nothing: the speed of the drive, or the time of a step, is not known.
struct CommitEstimate {
  Bytes bytes;  ///< of this rank, beside the record: states that steps have not written already
  std::optional<double> seconds;          ///< that the drive needs for them
  zero::CommitVerification verification;  ///< of this rank, as the run decides on it
  Bytes verified;                         ///< read back; nothing if commits are not verified
  std::optional<double> verify_s;         ///< that the drive needs for it
  std::optional<double> steps_apart;  ///< steps between two commits; also none for the last alone
  std::optional<double> wait_s;       ///< by which commits lengthen a step on average

  /// Bytes read back, spread over the steps between two commits.
  std::optional<double> verified_a_step() const {
    if (!steps_apart) return std::nullopt;
    return static_cast<double>(verified.value) / *steps_apart;
  }
};

/// A commit whose states are on the host is made beside the next step, and only that step's updates
/// wait for it: what its drive does while that is idle and the device computes takes no time. One
/// whose states are all on the device is waited for. `step`: without commits.
CommitEstimate EstimateCommits(const PlannedTraining& training, const offload::ShardLayout& layout,
                               const zero::MemoryPlan& memory, const MachineSpeed& speed,
                               const StepEstimate& step);

}  // namespace penstock::train
