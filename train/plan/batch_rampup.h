// The global batch of each step as a config has it.
//
// Threads: any.
#pragma once

#include <optional>

#include "config/config.h"
#include "sizing/batch_rampup.h"

namespace penstock::train {

/// How the batch grows; nothing if it does not.
std::optional<BatchGrowth> GrowthOf(const config::Config& config);

/// `config` was read and checked.
BatchRampup RampupOf(const config::Config& config);

}  // namespace penstock::train
