// D9: a dynamic loss scale that overflows more often than its doubling explains. In the first
// window of a run the scale falls to a suitable value, with an overflow for each halving.
//
// Skipped steps in a row are one overflow: hysteresis takes two or more for one halving. Threads:
// one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

class OverflowRateDetector {
 public:
  /// `facts` outlives the detector.
  explicit OverflowRateDetector(const RunFacts& facts) : facts_(facts) {}

  /// What has been reported is not counted again.
  std::optional<Report> Step(const StepNumbers& numbers);

 private:
  const RunFacts& facts_;
  uint64_t applied_ = 0;
  bool in_streak_ = false;
  std::deque<uint64_t> streaks_;  ///< number of applied steps when each began
};

}  // namespace penstock::train
