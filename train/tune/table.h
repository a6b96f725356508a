// Formats the results of `penstock tune` as text for a terminal.
//
// Pure functions. Threads: any.
#pragma once

#include <span>
#include <string>

#include "train/tune/choice.h"
#include "train/tune/result.h"

namespace penstock::train {

/// All results of a tuning.
struct TuneReport {
  std::string folder;
  std::string date;  ///< "2025-01-31 12:00 UTC"
  TunePlan plan;
  std::vector<PointSummary> grid;
  GridChoice choice;
  std::vector<PointSummary> engines;  ///< at the recommended block size and depth
  size_t engine = 0;                  ///< the chosen one of these
  Bytes written;                      ///< bytes that the whole tuning wrote
  Seconds elapsed{};
};

/// Returns the configuration that a report recommends.
const PointSummary& RecommendedSummary(const TuneReport& report);
const TunePoint& Recommended(const TuneReport& report);

/// Returns "5 rounds", or "2 to 3 of 5 rounds" if the time was over before.
std::string RoundsText(const TuneReport& report);

/// Returns both tables, the ceiling, the recommendation and the bytes written. Ends with a line
/// break.
std::string ToText(const TuneReport& report);

/// Returns the rows of one table under a header: GB/s as median with least and most, latencies as
/// median/p99. Rows `ceiling` and `chosen` are marked.
std::string TableText(std::span<const PointSummary> rows, size_t ceiling, size_t chosen);

}  // namespace penstock::train
