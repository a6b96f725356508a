// Compares a run with its plan: planned and measured figures.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/loop/metrics_summary.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// Plans the run of `job` and reads its figures from `loop`. Bytes of a step are those of one rank;
/// time is planned if the job knows its speeds. Nothing if no plan can be made.
std::optional<PlannedAndMeasured> HoldAgainstPlan(const TrainJob& job, const LoopSummary& loop);

/// Returns one line with the figures that differ from the plan by more than 5 % (bytes) or 20 %
/// (time); empty if none does, or if the run had too few steps to tell. `skipped` steps had no
/// update, and so took less.
std::string PlanNotice(const PlannedAndMeasured& figures, uint64_t steps, uint64_t skipped);

}  // namespace penstock::train
