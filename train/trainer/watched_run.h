// The facts about a training that monitoring its numerics needs before the first step.
//
// Threads: any.
#pragma once

#include "offload/layout.h"
#include "run/observers/run_watch.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

WatchedRun WatchedRunOf(const TrainJob& job, const offload::ModelLayout& layout);

}  // namespace penstock::train
