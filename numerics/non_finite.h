// D1 and D4: names the first non-finite value of a step, and ends a run with two non-finite
// forwards in a row.
//
// A dynamic loss scale that overflows a few times in a row, or right after it was doubled, is not
// reported, because that is how it finds its value. If the streak itself is reported (D3), that
// line names the tensor. Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "numerics/advice.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"
#include "numerics/streak.h"

namespace penstock::train {

/// The place of the first non-finite value, and the number of such values if known.
struct NonFinitePlace {
  Pass pass = Pass::kForward;
  std::optional<std::string> tensor = {};
  std::optional<uint32_t> layer = {};
  std::optional<uint64_t> micro_batch = {};
  std::vector<uint64_t> rows = {};
  std::optional<double> count = {};
};

/// Returns the first value that is not finite in the order of computation: what a step of the
/// streak that was computed again has shown, if it was the same pass that failed, else the first
/// layer's output in a forward that was not finite, else the last tensor (in the order of forward)
/// whose gradient is not; without a tensor where the figures do not tell. Precondition: something
/// is not finite.
NonFinitePlace FindNonFinite(const RunFacts& facts, const StepNumbers& numbers);

class NonFiniteDetector {
 public:
  /// `facts` outlives the detector.
  explicit NonFiniteDetector(const RunFacts& facts)
      : facts_(facts), streak_rule_(facts.dynamic_loss_scale) {}

  /// `broken_by`: the update that is known to have broken the weights. A report of severity kStop
  /// says that the run ends with this step.
  std::optional<Report> Step(const StepNumbers& numbers, const std::optional<uint64_t>& broken_by);
  /// A report of a streak, of step `step`, before a resume.
  void RememberStreak(uint64_t step) { streak_rule_.Remember(step); }
  /// Says that another process has resumed: the count of forwards starts at zero.
  void Resumed() { forwards_ = 0; }

 private:
  /// Whether the loss scale is larger than that of the last applied step.
  bool JustDoubled(const StepNumbers& numbers) const;

  const RunFacts& facts_;
  StreakRule streak_rule_;            ///< whether D3 names the tensor
  uint64_t forwards_ = 0;             ///< not finite, in a row
  uint64_t streak_ = 0;               ///< non-finite steps in a row
  std::optional<Pass> said_ = {};     ///< pass reported in this streak
  std::optional<double> scale_ = {};  ///< scale of the last applied step
};

}  // namespace penstock::train
