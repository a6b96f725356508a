// Runs the rounds of a tuning: every configuration once a round, in every direction.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <vector>

#include "aio/probe_file.h"
#include "base/result.h"
#include "train/process/status_line.h"
#include "train/tune/plan.h"
#include "train/tune/result.h"

namespace penstock::train {

struct MeasureOptions {
  int rounds = 1;
  aio::LoopLimit limit;
  /// No probe begins later or runs longer: an interrupted turn does not count.
  std::chrono::steady_clock::time_point deadline;
  aio::StopRequested stop;
  const char* what = "";  ///< "grid": for the progress line
  bool terminal = false;  ///< progress after each turn; else after each tenth of them
};

/// The measurements of `points`, in their order. A configuration whose engine is unavailable has
/// the reason instead. Errors: of the drive; kCancelled.
Result<std::vector<PointProbes>> MeasurePoints(const std::vector<TunePoint>& points,
                                               aio::ProbeFile* file, const MeasureOptions& options,
                                               StatusLine* progress);

}  // namespace penstock::train
