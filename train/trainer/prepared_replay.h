// Prepares a replay up to its first step: a new run, whose state is filled from a commit of another
// run, which stays as it is.
//
// Where a state lives, how it is cut, and how many ranks share it change no bit. So the replay has
// one rank and a place of its own, whatever the other run has.
//
// Threads: one at a time.
#pragma once

#include "base/result.h"
#include "train/models/registry.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"

namespace penstock::train {

/// What the first Ctrl-C says.
inline constexpr const char* kReplayInterruptNotice =
    "penstock: ending the replay after this step; interrupt again to quit at once";

/// Prepares what `given.replay` asks for. The caller has the lock of the other run. Errors:
/// kInvalidArgument if the commit is of a training with other numbers, or of another arithmetic;
/// kBudget; kOutOfSpace, before anything is written; kCancelled. After an error nothing is left.
Result<PreparedRun> PrepareReplay(const TrainOptions& given, ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
