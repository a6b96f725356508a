// The learning rate of a step, as DeepSpeed's schedulers give it.
//
// Read in DeepSpeed 0.19 (runtime/lr_schedules.py; the constructors set the optimizer's rate since
// pull request #6597, released with 0.15.3): the scheduler starts at iteration -1 and its
// constructor sets the rate of that iteration, which is the minimum for the warm-up schedules and 0
// for the cosine one. It is advanced after each optimizer step. So step 1 runs at iteration -1,
// step 2 at iteration 0, step s at iteration s - 2. The operations and their order are DeepSpeed's,
// in double.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace penstock::zero {

/// lr of optimizer step `step`, from 1. As in DeepSpeed, step 1 has the schedule's start (the
/// minimum; 0 for the cosine one) and step s > 1 its value at iteration s - 2. Skipped steps do not
/// count. Precondition: step > 0.
double LearningRate(const config::SchedulerConfig& scheduler, double optimizer_lr, uint64_t step);

}  // namespace penstock::zero
