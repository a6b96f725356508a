// The prediction of sim/ for a step of several ranks.
#pragma once

#include "bench/rank_case.h"

namespace penstock::bench {

struct PredictedStep {
  double step_s = 0;
  DriveBytes drive;  ///< bytes of a step
};

/// Returns the mean step of rank 0 in the steady state, with what the case says of drive and link.
/// The device computes beside everything else.
PredictedStep PredictRankStep(const RankCase& rank_case, const RankPlan& plan);

}  // namespace penstock::bench
