// The results of `penstock tune`: single measurements, and their summary over the rounds.
//
// Plain values. Threads: any.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "aio/probe.h"
#include "train/tune/plan.h"

namespace penstock::train {

using aio::Direction;
using aio::kDirections;
using aio::Probe;

/// All measurements of a configuration, by direction and round.
struct PointProbes {
  TunePoint point;
  std::array<std::vector<Probe>, kDirections.size()> probes;
  std::string registration;                ///< whether the buffers were registered
  std::optional<std::string> unavailable;  ///< why the engine is not available
};

/// Medians over the rounds, and the spread of the speed.
struct DirectionSummary {
  double gbps = 0;
  double gbps_min = 0;
  double gbps_max = 0;
  double median_us = 0;
  double p99_us = 0;
  double cpu_s_per_gb = 0;
};

/// A row of the table.
struct PointSummary {
  TunePoint point;
  std::array<DirectionSummary, kDirections.size()> directions;
  std::vector<double> round_gbps;  ///< of each round, over the directions; empty: not measured
  std::string registration;        ///< whether the buffers were registered
  std::string reason;              ///< why it was not measured

  bool measured() const { return !round_gbps.empty(); }
  const DirectionSummary& operator[](Direction direction) const {
    return directions[static_cast<size_t>(direction)];
  }
};

/// Returns the speed, in GB/s, of a job that moves the same bytes in each direction at these
/// speeds: their harmonic mean, or 0 if one of them is 0.
double CombinedGbps(const std::array<double, kDirections.size()>& gbps);

PointSummary Summarize(const PointProbes& probes);
std::vector<PointSummary> Summarize(const std::vector<PointProbes>& probes);

}  // namespace penstock::train
