// Prepares a replay up to its first step: a new run, whose state is filled from a commit of another
// run, which is unchanged.
//
// The home of a state, its tiles and its number of ranks change no bit. So a replay always has one
// rank and its own folder.
//
// Threads: one at a time.
#pragma once

#include "base/result.h"
#include "train/models/registry.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"

namespace penstock::train {

/// The notice of the first Ctrl-C.
inline constexpr const char* kReplayInterruptNotice =
    "penstock: ending the replay after this step; interrupt again to quit at once";

/// Prepares the replay in `given.replay`. The caller has the lock of the other run. Errors:
/// kInvalidArgument if the commit is of a training with other numbers, or of another arithmetic;
/// kBudget; kOutOfSpace, before anything is written; kCancelled. After an error nothing is left.
Result<PreparedRun> PrepareReplay(const TrainOptions& given, ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
