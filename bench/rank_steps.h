// Whole steps of several ranks, as threads of this process.
//
// Kernels wait instead of computing. So they take the time that the case says, however many ranks
// share the processor's cores. Everything else is the engine's: gathers, exchanges and sums over
// comm's link between threads, updates, and I/O on a simulated drive for each rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/rank_case.h"

namespace penstock::bench {

struct RankSteps {
  std::vector<double> step_s;  ///< steps of rank 0, each from its begin to the next one's
  DriveBytes drive;            ///< bytes of rank 0 in a step
};

/// Trains one step that is not counted, and then this many. States are in a separate folder in
/// `folder` meanwhile. Errors: those of the first rank that fails.
Result<RankSteps> MeasureRankSteps(const RankCase& rank_case, const std::string& folder,
                                   uint64_t steps);

}  // namespace penstock::bench
