// Prepares a run that resumes from its last commit, or from that of a snapshot.
//
// Threads: one at a time.
#pragma once

#include <optional>

#include "base/result.h"
#include "train/loop/prepared_run.h"
#include "train/loop/ranks.h"
#include "train/loop/trainer.h"
#include "train/models/registry.h"

namespace penstock::train {

/// As PrepareRun, for a run that resumes.
Result<std::optional<PreparedRun>> PrepareResumedRun(const TrainOptions& given,
                                                     ModelFamilies families, Ranks& ranks);

}  // namespace penstock::train
