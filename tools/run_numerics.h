// Reads the numbers of a run for `penstock numerics`: rows, reports, headroom, and how it ended.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "numerics/headroom_log.h"
#include "numerics/report.h"
#include "run/row_reader.h"
#include "run/run_info.h"

namespace penstock::train {

/// From overflow.json.
struct NumericsStop {
  uint64_t step = 0;
  std::string line;
  std::string first_cause;  ///< its line; empty: unknown
  std::string advice;
};

/// Reads RUN/overflow.json; nothing if there is none. Errors: of reading it; kCorruption.
Result<std::optional<NumericsStop>> ReadNumericsStop(const Folder& run);

struct RunNumerics {
  std::string run;  ///< path
  RunKind kind = RunKind::kTrain;
  std::vector<NumericsRow> rows;
  std::vector<Report> reports;
  std::vector<HeadroomRow> headroom;
  std::optional<NumericsStop> stop;
};

/// Reads a run's files; those that are missing are empty, and lines that are damaged are left out.
/// Errors: kNotFound if `run` is not a run; of Folder::OpenFile; kCorruption for an overflow.json
/// that cannot be read.
Result<RunNumerics> ReadRunNumerics(const std::string& run);

/// Returns a table of the reports for a terminal, and above it what they are of.
std::string ToTable(const RunNumerics& numerics);

}  // namespace penstock::train
