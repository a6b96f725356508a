// Searches a skipped step for its first non-finite value if SearchRule says so, and adds the
// finding to the step's numbers.
//
// The search is collective (train/loop/overflow_search.h), so every rank has one of these. Threads:
// as of a StepObserver.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "numerics/step_numbers.h"
#include "run/observers/step_observer.h"
#include "train/loop/search_rule.h"

namespace penstock::train {

class SkippedStepSearch final : public StepObserver {
 public:
  /// Recomputes the last step. Returns nothing if every value was finite.
  using Search = std::function<Result<std::optional<FirstNonFinite>>(const StepNumbers& numbers)>;

  /// `last_step`: the last one of the run, which is never searched: nothing is read ahead for a
  /// step after it.
  SkippedStepSearch(SearchRule rule, uint64_t last_step, Search search)
      : rule_(std::move(rule)), last_step_(last_step), search_(std::move(search)) {}

  /// Errors: of the search.
  Status AfterStep(DoneStep& step) override;

 private:
  SearchRule rule_;
  const uint64_t last_step_;
  const Search search_;
};

}  // namespace penstock::train
