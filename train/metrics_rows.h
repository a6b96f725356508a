// What a file of rows (RUN/metrics.jsonl) has of the steps up to a commit.
//
// The rows before a commit's are synchronised before the commit is made, and its own row is in it
// as well (train/trainer_loop.cc). Where they cannot be, the commit is made all the same, and the
// run ends: then the file may end early. So a file of whole rows that ends before the committed
// step's, in a torn line or without one, has a gap, behind which it goes on with the row of that
// step. That row names the one before it ("previous_row"), so that the gap is known for one later.
// Anything else before the committed step's row is damage, and nothing of the file is removed.
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
};

/// The rows of steps up to `step`, which is committed. A file may begin with a later step than the
/// first: what was before it is elsewhere. It may end early, too: then last_step is below `step`
/// - 1. Errors: kCorruption, naming the line, where a row that has others behind it is damaged,
/// missing or there twice; kIo.
Result<KeptRows> RowsUpTo(std::istream& file, const std::string& path, uint64_t step);

/// `row`, a row's JSON, as it stands behind a gap that follows the row of step `previous`.
std::string AfterGap(const std::string& row, uint64_t previous);

}  // namespace penstock::train
