// Which steps are computed again to find the first value that is not finite, and what that has
// found.
//
// A search costs a forward and a backward. In a streak of skipped steps the first that the watch
// reports is searched, and after that only a step in which another pass failed; not soon again in
// the next streak. A replay searches every skipped step.
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

  /// Takes the steps, one after the other. Returns whether this one is to be searched.
  bool Due(const EndedStep& step);
  /// Takes what the search of the last step has found; nothing if that is nothing.
  void Found(std::optional<FirstNonFinite> first) { first_ = std::move(first); }
  /// Returns what is known of the streak that the last step belongs to.
  const std::optional<FirstNonFinite>& first() const { return first_; }

 private:
  const bool dynamic_;
  const bool every_;
  StreakRule streak_;
  std::optional<FirstNonFinite> first_;
  std::optional<uint64_t> searched_;  ///< the last step that was
};

}  // namespace penstock::train
