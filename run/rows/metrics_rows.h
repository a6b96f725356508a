// Finds the rows of the steps up to a commit in a file of rows (RUN/metrics.jsonl).
//
// The rows before a commit's are synchronised before the commit is made, and the commit has its own
// row as well (train/loop/trainer_loop.cc). If they cannot be synchronised, the commit is still
// made, and the run ends; then the file may end early. So a file of whole rows may end before the
// committed step's row, with or without a torn line. The resumed run continues after this gap with
// the row of that step, which names the row before it ("previous_row"), so that the gap is
// recognised later. So does the first row after steps that the run passed over
// (run/identity/skipped_steps.h). Anything else before the committed step's row is damage, and
// nothing of the file is removed.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// The rows that stay: the bytes before `end`.
struct KeptRows {
  FileOffset end;
  uint64_t first_step = 0;  ///< 0: no row stays
  uint64_t last_step = 0;
  std::string last_row;  ///< its line
};

/// Returns the rows of steps up to `step`, which is committed. A file may begin with a later step
/// than the first, if the earlier file was moved away. It may also end early: then last_step is
/// less than `step` - 1. Errors: kCorruption, naming the line, if a row that has others after it is
/// damaged, missing, longer than a line may be or there twice; kIo.
Result<KeptRows> RowsUpTo(std::istream& file, const std::string& path, uint64_t step);

/// Whether the first line of a file is a row as ToJson writes it (run/rows/metrics_file.h), or the
/// file is empty: files of users may have the same name. Errors: kIo.
Result<bool> BeginsWithRow(std::istream& file, const std::string& path);

/// The field of a row that follows a gap.
inline constexpr const char* kPreviousRow = "previous_row";

/// Whether a line of a file can be the row of a commit: it has the same outcome of the same step,
/// and in the rows of a caller the same values. `row`: the commit's; may be empty.
bool AreOfOneStep(const std::string& line, const std::string& row);

/// Returns the step of the row before `row`, the JSON of the row of `step`: the step before it, or
/// an earlier one if steps were passed over. 0: there is none.
uint64_t RowBefore(const std::string& row, uint64_t step);

/// Returns `row`, a row's JSON, as it is written after a gap that follows the row of step
/// `previous`.
std::string AfterGap(const std::string& row, uint64_t previous);

}  // namespace penstock::train
