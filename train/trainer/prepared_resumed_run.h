// Prepares a run that resumes from its last commit, or from that of a snapshot.
//
// Threads: one at a time.
#pragma once

#include <optional>

#include "base/result.h"
#include "train/models/registry.h"
#include "train/trainer/prepared_run.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"

namespace penstock::train {

/// As PrepareRun, for a run that resumes.
Result<std::optional<PreparedRun>> PrepareResumedRun(const TrainOptions& given,
                                                     ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
