// Prepares a new run up to its first step.
//
// Threads: one at a time.
#pragma once

#include "base/result.h"
#include "train/models/registry.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"

namespace penstock::train {

/// As PrepareRun, for a run that neither resumes nor replays.
Result<PreparedRun> PrepareNewRun(const TrainOptions& given, ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
