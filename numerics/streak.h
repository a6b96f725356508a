// D3: predicts the end of a run whose steps are skipped one after the other.
//
// A dynamic loss scale skips steps in a row whenever it falls to a suitable value. Such a streak is
// reported only when it is about to end the run. Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

/// Decides in which step a streak of skipped steps is reported: once for each streak.
class StreakRule {
 public:
  explicit StreakRule(bool dynamic_loss_scale) : dynamic_(dynamic_loss_scale) {}

  /// Takes a step, the `skipped`-th in a row to be skipped, or none (0). `steps_to_stop` as in
  /// StepNumbers: a step that ends the run is not reported, nor, with a dynamic loss scale, one
  /// with an unknown distance to the end. Returns whether it is reported.
  bool Step(uint64_t step, uint64_t skipped, const std::optional<uint64_t>& steps_to_stop);
  /// Says that a report of step `step` told of the streak that it belongs to.
  void Remember(uint64_t step) { said_ = said_ || (skipped_ > 0 && step >= began_); }
  /// How many steps in a row were skipped.
  uint64_t skipped() const { return skipped_; }
  /// Whether this streak was told of.
  bool said() const { return said_; }

 private:
  const bool dynamic_;
  uint64_t skipped_ = 0;
  uint64_t began_ = 0;  ///< first known step of the streak
  bool said_ = false;
};

class StreakDetector {
 public:
  /// `facts` outlives the detector.
  explicit StreakDetector(const RunFacts& facts) : facts_(facts), rule_(facts.dynamic_loss_scale) {}

  /// Reports the step of which StreakRule tells.
  std::optional<Report> Step(const StepNumbers& numbers);
  /// A report of a streak, of step `step`, before a resume.
  void Remember(uint64_t step) { rule_.Remember(step); }

 private:
  const RunFacts& facts_;
  StreakRule rule_;
};

}  // namespace penstock::train
