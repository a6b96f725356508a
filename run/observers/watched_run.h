// The facts about a training that monitoring its numerics needs before the first step.
//
// Threads: any.
#pragma once

#include "config/config.h"
#include "offload/layout.h"
#include "run/observers/run_watch.h"
#include "zero/model.h"

namespace penstock::train {

/// `layout`: of `model`. The caller adds the vocabulary, if it is known.
WatchedRun WatchedRunOf(const config::Config& config, const zero::ModelSpec& model,
                        const offload::ModelLayout& layout);

}  // namespace penstock::train
