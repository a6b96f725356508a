// The notices of a resumed run.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "run/identity/run_changes.h"
#include "run/resume.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// Logs the step after which the run resumes, its changes, and what may change the last bits:
/// ranks, version and arithmetic. `now`: the arithmetic of this process.
void LogResume(const ResumePoint& from, const TrainJob& job, const std::string& now,
               const std::vector<RunChange>& changes);

/// Returns the changes as on the command line; "nothing" if there are none.
std::string TextOf(const std::vector<RequestedChange>& changes);

}  // namespace penstock::train
