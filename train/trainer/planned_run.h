// A run held against its plan: what it was to take, and what it took.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/loop/metrics_summary.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// Plans the run of `job` and reads what it took from `loop`. Bytes of a step are those of one
/// rank; time is planned if the job knows its speeds. Nothing if no plan can be made.
std::optional<PlannedAndMeasured> HoldAgainstPlan(const TrainJob& job, const LoopSummary& loop);

/// Returns one line on what parts from the plan by more than 5 % (bytes) or 20 % (time); empty if
/// nothing does, or if the run had too few steps to tell. `skipped` of the steps were without
/// update, and took less for that reason.
std::string PlanNotice(const PlannedAndMeasured& figures, uint64_t steps, uint64_t skipped);

}  // namespace penstock::train
