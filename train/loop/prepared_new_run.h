// Prepares a new run up to its first step.
//
// Threads: one at a time.
#pragma once

#include "base/result.h"
#include "train/loop/prepared_run.h"
#include "train/loop/ranks.h"
#include "train/loop/trainer.h"
#include "train/models/registry.h"

namespace penstock::train {

/// As PrepareRun, for a run that neither resumes nor replays.
Result<PreparedRun> PrepareNewRun(const TrainOptions& given, ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
