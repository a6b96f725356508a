// What must be the same on all ranks of a training before its first step.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace penstock::train {

/// A key as a user knows it, and its value.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// Returns the program's version, the last step, everything in the identity of the run
/// (train/run/run_identity.h) but the arithmetic, and everything in the configuration but what each
/// rank may choose for itself: paths, budgets, threads of the optimizer and the I/O engine. The
/// order is the same on all ranks.
NamedValues ValuesToBeAlike(const std::string& identity, const config::Config& config,
                            uint64_t last_step);

}  // namespace penstock::train
