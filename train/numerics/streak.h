// D3: foresees the end of a run whose steps are skipped one after the other.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "train/numerics/report.h"
#include "train/numerics/step_numbers.h"

namespace penstock::train {

class StreakDetector {
 public:
  /// `facts` outlives the detector.
  explicit StreakDetector(const RunFacts& facts) : facts_(facts) {}

  /// Reports the kStreakSteps-th skipped step in a row.
  std::optional<Report> Step(const StepNumbers& numbers);

 private:
  const RunFacts& facts_;
  uint64_t skipped_ = 0;  ///< in a row
};

}  // namespace penstock::train
