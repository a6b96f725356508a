// Compares the rows of a replay with those of its run, bit for bit in computed values, without
// times and bytes.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "numerics/replayed_steps.h"

namespace penstock::train {

struct RowComparison {
  uint64_t compared = 0;                 ///< rows that both have
  std::vector<std::string> differences;  ///< "step 7: loss is 2.31, was 2.3"; the first few
  uint64_t differing = 0;                ///< rows
};

/// Compares the rows of steps `after` + 1 to `last`, as far as the run has them. Errors: of reading
/// the files.
Result<RowComparison> CompareRows(const Folder& run, const Folder& replay, uint64_t after,
                                  uint64_t last);

/// Returns what the rows of these steps of a run tell, of which no tensors are known.
Result<std::vector<ReplayedStep>> StepsOfRows(const Folder& run, uint64_t after, uint64_t last);

/// Returns what `row`, a row's JSON, and the run's row of that step differ in; empty if they do
/// not, or if the run has no such row.
Result<std::string> DifferenceFromRow(const Folder& run, uint64_t step, const std::string& row);

}  // namespace penstock::train
