// Steps that a run passes over: `penstock train … --resume --skip-steps A:B`.
//
// Such a step is not computed: its rows of the data are passed over, its number is used up, and
// weights, moments, the count of updates and the schedule stand as they are. It has no row in
// metrics.jsonl; the row after it says which one is before it ("previous_row"). run.json keeps the
// ranges, so that a resume before them passes over them as well.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// Steps `first` to `last`, both included.
struct StepRange {
  uint64_t first = 0;
  uint64_t last = 0;

  bool Has(uint64_t step) const { return first <= step && step <= last; }
  bool operator==(const StepRange&) const = default;
};

/// Steps have numbers up to this one, as commits have (docs/state_format.md).
inline constexpr uint64_t kLastStepNumber = uint64_t{1} << 48;

/// "103:105".
std::string ToText(const StepRange& range);
/// "103:105, 200:200".
std::string ToText(const std::vector<StepRange>& ranges);

/// Reads "A:B" of each --skip-steps. Errors: kInvalidArgument unless 1 <= A <= B.
Result<std::vector<StepRange>> ParseSkips(const std::vector<std::string>& texts);

/// Returns the ranges that a run passes over, in their order: those that it has (`recorded`), and
/// the requested ones. `committed`: the step after which it resumes. Errors: kInvalidArgument if a
/// new one begins at a step that is committed, or overlaps another; if
/// `last_step` lies in one, because a run ends with a step that was computed.
Result<std::vector<StepRange>> AddSkips(const std::vector<StepRange>& recorded,
                                        const std::vector<StepRange>& asked, uint64_t committed,
                                        uint64_t last_step);

}  // namespace penstock::train
