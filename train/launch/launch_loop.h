// Runs the processes of all ranks to their end: forwards signals, merges their output, and ends all
// with the first failure.
//
// Threads: the main thread, while there is no other one.
#pragma once

#include <vector>

#include "base/result.h"
#include "train/launch/rank_fates.h"
#include "train/launch/rank_process.h"

namespace penstock::train {

/// Starts the ranks, which are numbered from 0, and returns the exit code of the launch when all
/// have ended. The ends of ranks, and a failure to start one, are reported on stderr. Errors:
/// resources that the launcher itself lacks.
Result<int> RunRanks(const std::vector<RankCommand>& commands, const Patience& patience);

}  // namespace penstock::train
