// The learning rate of a step, and with OneCycle its betas, as DeepSpeed's schedulers give them.
//
// Read in DeepSpeed 0.19 (runtime/lr_schedules.py; the constructors set the optimizer's rate since
// pull request #6597, released with 0.15.3): the scheduler starts at iteration -1 and its
// constructor sets the rate of that iteration, which is the minimum, and 0 for the cosine one. It
// is advanced after each optimizer step. So step 1 runs at iteration -1, step 2 at iteration 0,
// step s at iteration s - 2. The operations and their order are DeepSpeed's, in double. They are
// functions of the step alone, so that a run that is resumed has what it would have had.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "config/config.h"

namespace penstock::zero {

/// lr of optimizer step `step`, from 1. As in DeepSpeed, step 1 has the schedule's start (the
/// minimum; 0 for the cosine one) and step s > 1 its value at iteration s - 2. Skipped steps do not
/// count. Precondition: step > 0.
double LearningRate(const config::SchedulerConfig& scheduler, double optimizer_lr, uint64_t step);

/// The key of the configuration that decides the rate of optimizer step `step`: the optimizer's lr,
/// unless the schedule has a rate of its own. Precondition: step > 0.
const char* KeyOfRate(const config::SchedulerConfig& scheduler, uint64_t step);

/// The betas of a step, of every parameter group.
struct Betas {
  double beta1;
  double beta2;
};

/// Those of optimizer step `step`, if the schedule sets them: they take the place of the
/// optimizer's own, if its rule has any. Precondition: step > 0.
std::optional<Betas> CycledBetas(const config::SchedulerConfig& scheduler, uint64_t step);

/// Checks that the betas are in [0, 1) up to optimizer step `last`: a momentum that grows or falls
/// after its cycle leaves that some day. Errors: kInvalidArgument.
Status CheckBetas(const config::SchedulerConfig& scheduler, uint64_t last);

}  // namespace penstock::zero
