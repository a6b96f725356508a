// What follows from the time of a step: speed, the length of a training, what a drive is written
// to, and how long a batch ramp-up takes.
//
// Plain functions.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "sizing/drive_wear.h"
#include "sizing/ramp_time.h"
#include "sizing/training_time.h"
#include "train/plan/run_plan.h"

namespace penstock::train {

/// What is asked beyond a step.
struct PlanQuestions {
  uint32_t ranks = 1;           ///< a GPU each
  uint32_t ranks_of_drive = 1;  ///< those that write to one rank's drives
  double training_tokens = 0;   ///< 0: not asked
  std::optional<DriveRating> rating = {};
};

/// A value is none if the time of a step or the drive's speed is unknown, or if it was not asked
/// for.
struct PlanRates {
  std::optional<double> tokens_per_s;
  std::optional<double> tflops;           ///< of all ranks, without recomputation
  std::optional<double> hardware_tflops;  ///< with it
  /// Tokens of a step from which the drive takes no longer than compute.
  std::optional<double> hidden_tokens;
  std::optional<DriveWear> wear;  ///< of steps and commits, if they write
  std::optional<TrainingTime> training;
  std::optional<RampTime> ramp;  ///< of a batch that grows
};

/// In a ramp-up compute grows with the batch, and so do gradients that are sent with each
/// micro-batch; updates, copies, weights that are sent and the drive do not. `config`: that
/// of the plan.
PlanRates RatesOf(const RunPlan& plan, const config::Config& config,
                  const PlanQuestions& questions);

}  // namespace penstock::train
