// What must be the same on all ranks of a training before its first step.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "comm/job.h"
#include "config/config.h"
#include "zero/model.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {

/// A key as a user knows it, and its value.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// Returns the last step, the identity of the run (run/identity/run_identity.h) without the
/// arithmetic, and the configuration without keys that each rank may choose for itself: paths,
/// budgets, threads of the optimizer and I/O. The order is the same on all ranks.
NamedValues ValuesToBeAlike(const std::string& identity, const config::Config& config,
                            uint64_t last_step);

/// Returns a text that differs for other weights: a checksum of the first and last elements of
/// every tensor. Errors: of the source.
Result<std::string> RecogniseWeights(const zero::ModelSpec& model,
                                     const zero::TensorSource& weights);

/// Compares values that must be the same on all ranks of a job of several. All ranks exchange a
/// hash of theirs, and the values themselves only if the hashes differ. Errors: kInvalidArgument,
/// naming the key, the lowest rank that differs from rank 0, and both values; of the job.
Status CheckAlike(comm::Job& job, const NamedValues& mine);

}  // namespace penstock::train
