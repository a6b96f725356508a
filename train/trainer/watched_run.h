// What the watch over a run's numbers has to know of a training before its first step.
//
// Threads: any.
#pragma once

#include "offload/layout.h"
#include "run/observers/run_watch.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

WatchedRun WatchedRunOf(const TrainJob& job, const offload::ModelLayout& layout);

}  // namespace penstock::train
