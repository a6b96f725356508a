// What a run's folder tells: how far it came, how it ended, and what bounded its steps.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "run/run_info.h"
#include "sim/drive.h"
#include "train/doctor/check.h"
#include "train/doctor/run_place.h"
#include "train/doctor/step_bound.h"

namespace penstock::train {

/// What was read of a run.
struct RunRecord {
  std::string run;
  RunKind kind = RunKind::kTrain;
  std::string device;    ///< "cpu (AMD EPYC, 2 cores)"; "cpu" without a summary
  std::string engine;    ///< that did the I/O; empty: not known
  RunPlace place;        ///< of its state
  uint64_t steps = 0;    ///< rows
  uint64_t skipped = 0;  ///< of these
  uint64_t last_step = 0;
  double tokens = 0;
  double seconds = 0;
  bool has_summary = false;
  bool interrupted = false;
  std::string stop;  ///< the line of overflow.json; empty: it did not end by its numbers
  /// The first row and the last are left out if there are five or more.
  StepFigures figures;
  std::optional<sim::DriveSpeed> simulated;  ///< from the summary's configuration
};

/// Reads RUN. A file that is missing, or a line that is damaged, is passed over. Errors: kNotFound
/// if it is no run; kCorruption if run.json cannot be read.
Result<RunRecord> ReadRunRecord(const std::string& run);

/// `gbps`: GB/s of its drives on one host together (RunPlace::host), with both directions in turn,
/// if that is known. A run whose drives are simulated has their speed, and needs no other.
Checks RunChecks(const RunRecord& facts, const std::optional<double>& gbps);

}  // namespace penstock::train
