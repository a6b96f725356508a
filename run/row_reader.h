// Reads RUN/metrics.jsonl row by row, for readers of the steps' values. A line that is not a row is
// skipped; run/rows/metrics_rows.h checks the rows from which a run resumes.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

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

/// What plots and detectors need of a row of metrics.jsonl; null is NaN.
struct NumericsRow {
  uint64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double loss_scale = 1;
  bool skipped = false;
};

/// Returns the rows of a run, of which each has a later step than the one before. Errors: of
/// ForEachRow.
Result<std::vector<NumericsRow>> ReadNumericsRows(const Folder& run);

}  // namespace penstock::train
