// How long a batch-size ramp-up takes, and where in it a drive sets the pace.
//
// A step's time is linear in its samples: what does not depend on them (a pipeline that fills, an
// update) and a share for each. On a drive the bytes of a step do not shrink with its batch, so
// small batches take the drive's time. Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sizing/batch_rampup.h"

namespace penstock::train {

/// Seconds of a step by its samples.
struct StepTimeLine {
  double fixed_s = 0;
  double sample_s = 0;

  double At(uint64_t samples) const;
};

/// What a step takes without the drive: the longest of these, which run beside each other.
using StepTimeLines = std::vector<StepTimeLine>;

/// Returns the least samples of a step that takes at least `drive_s` by the lines: from there on
/// the drive, which needs `drive_s` for each step, is hidden. kMaxCount if there are none.
uint64_t HiddenFrom(const StepTimeLines& lines, double drive_s);

struct RampTime {
  uint64_t steps = 0;
  double seconds = 0;
  uint64_t drive_bound_steps = 0;  ///< steps that take the drive's time
  double drive_bound_s = 0;        ///< what the drive adds in these
  uint64_t hidden_from = 0;        ///< HiddenFrom; 0 without a drive
};
/// Returns the time of the steps that begin before `samples` samples were taken. `drive_s`: what
/// the drive needs for a step at least; 0: there is none. Takes a time in proportion to the number
/// of different batches.
RampTime TimeOfRamp(const BatchRampup& rampup, uint64_t samples, const StepTimeLines& lines,
                    double drive_s);

/// Returns "9926 steps, 5.45 days; …": one line without a line break.
std::string RampTimeText(const RampTime& time);
/// Returns {"steps", "seconds", "drive_bound_steps", "drive_bound_s", "hidden_from"}; the last one
/// is null if the drive is never hidden.
nlohmann::json RampTimeJson(const RampTime& time);

}  // namespace penstock::train
