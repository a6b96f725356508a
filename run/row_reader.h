// Reads RUN/metrics.jsonl row by row, for what looks at the numbers of steps. A line that is not a
// row is passed over; what a run goes on from is checked by run/metrics_rows.h.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

/// Calls `take` with each row and its step, in the order of the file; with none if the file is
/// missing. Errors: of Folder::OpenFile; kIo; kCorruption for a line that is too long to be read.
Status ForEachRow(const Folder& run,
                  const std::function<void(uint64_t step, nlohmann::json row)>& take);

/// Returns a field of a row; null if it is missing.
const nlohmann::json& FieldOf(const nlohmann::json& row, const char* key);
/// Returns a field of a row; NaN if it is missing or not a number.
double NumberOf(const nlohmann::json& row, const char* key);

}  // namespace penstock::train
