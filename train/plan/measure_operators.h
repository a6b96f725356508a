// Measures how fast this machine's device computes a model's operators, at the shapes that the
// model has.
//
// A few calls of each operator, over at most kMeasuredRows rows: about as long as one micro-batch
// of one layer and of the head. Threads: the main thread, while nothing else computes.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "train/plan/budget.h"

namespace penstock::train {

inline constexpr uint64_t kMeasuredRows = 1024;

/// Operations a second, as train/plan/compute_cost.h counts them.
struct OperatorRates {
  double layers = 0;
  double head = 0;
  bool interrupted = false;  ///< by other programs (train/plan/work_time.h)
};

/// Errors: kBudget for operators that take more than 1 GiB, or too long, to be measured in passing;
/// kUnavailable on a GPU, where device::Kind is kCuda; of device and operators.
Result<OperatorRates> MeasureOperators(const PlannedTraining& training);

}  // namespace penstock::train
