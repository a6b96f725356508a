// D3: foresees the end of a run whose steps are skipped one after the other.
//
// A dynamic loss scale skips steps in a row whenever it comes down to where it fits. That is told
// of only when the end is near.
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "train/numerics/report.h"
#include "train/numerics/step_numbers.h"

namespace penstock::train {

/// Whether a step is told of that is the `skipped`-th in a row to be skipped. `steps_to_stop` as in
/// StepNumbers. True once in a streak.
bool TellsOfStreak(bool dynamic_loss_scale, uint64_t skipped,
                   const std::optional<uint64_t>& steps_to_stop);

class StreakDetector {
 public:
  /// `facts` outlives the detector.
  explicit StreakDetector(const RunFacts& facts) : facts_(facts) {}

  /// Reports the step of which TellsOfStreak.
  std::optional<Report> Step(const StepNumbers& numbers);

 private:
  const RunFacts& facts_;
  uint64_t skipped_ = 0;  ///< in a row
};

}  // namespace penstock::train
