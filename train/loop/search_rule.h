// Which steps are recomputed to find the first non-finite value, and the result.
//
// A search costs a forward and a backward. In a streak of skipped steps, the first one that the
// watch reports is searched, then only a step in which another pass failed; a streak soon after is
// not searched. A replay searches every skipped step.
//
// A plain value, the same on all ranks. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "numerics/step_numbers.h"
#include "numerics/streak.h"

namespace penstock::train {

/// A step that has ended.
struct EndedStep {
  uint64_t step = 0;
  bool forward_finite = true;
  uint64_t skipped_in_a_row = 0;  ///< with this one; 0: it was applied
  uint64_t steps_to_stop = 0;     ///< as in StepNumbers
};

class SearchRule {
 public:
  /// `every`: all skipped steps are searched.
  SearchRule(bool dynamic_loss_scale, bool every)
      : dynamic_(dynamic_loss_scale), every_(every), streak_(dynamic_loss_scale) {}

  /// Takes the next step. Returns whether to search it.
  bool Due(const EndedStep& step);
  /// Takes the finding of the last step's search, if any.
  void Found(std::optional<FirstNonFinite> first) { first_ = std::move(first); }
  /// Returns the finding for the last step's streak, if any.
  const std::optional<FirstNonFinite>& first() const { return first_; }

 private:
  const bool dynamic_;
  const bool every_;
  StreakRule streak_;
  std::optional<FirstNonFinite> first_;
  std::optional<uint64_t> searched_;  ///< the last searched step
};

}  // namespace penstock::train
