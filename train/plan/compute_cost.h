// The operations of each use of a module in a step, and the time that they take.
//
// Plain functions.
#pragma once

#include <vector>

#include "offload/layout.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"

namespace penstock::train {

/// Operations of each use in a step of this rank, recomputation included. A layer of n parameters
/// takes (2 n + 4 T w) a token forward and (6 n + 12 T w) backward, which computes it again: w is
/// the width of its heads, T the sequence, and attention is counted whole, without its causal half.
/// A module that stands alone and is used backward is the head, 6 n: it has forward and backward at
/// once. Others only look rows up, or are norms, and count as nothing.
std::vector<double> OperationsOfUses(const PlannedTraining& training,
                                     const offload::ModelLayout& layout);

/// Seconds of each use; zero where the speed is not known.
std::vector<sim::Seconds> ComputeOfUses(const PlannedTraining& training,
                                        const offload::ModelLayout& layout,
                                        const MachineSpeed& speed);

}  // namespace penstock::train
