// The global batch of each step as a config has it.
//
// Threads: any.
#pragma once

#include "config/config.h"
#include "train/sizing/batch_rampup.h"

namespace penstock::train {

/// `config` was read and checked.
BatchRampup RampupOf(const config::Config& config);

}  // namespace penstock::train
