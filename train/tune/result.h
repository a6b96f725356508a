// What `penstock tune` found: single measurements, and what the rounds make of them.
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
  std::string registration;                ///< what became of registering the buffers
  std::optional<std::string> unavailable;  ///< why the engine is not to be had
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
  std::string registration;        ///< what became of registering the buffers
  std::string reason;              ///< why it was not measured

  bool measured() const { return !round_gbps.empty(); }
  const DirectionSummary& operator[](Direction direction) const {
    return directions[static_cast<size_t>(direction)];
  }
};

/// The speed, in GB/s, of a job that moves the same bytes in each direction, at these speeds: their
/// harmonic mean. 0 where one of them is.
double CombinedGbps(const std::array<double, kDirections.size()>& gbps);

/// The middle value; of an even number, the mean of the two in the middle. Precondition: not empty.
double Median(std::vector<double> values);

PointSummary Summarize(const PointProbes& probes);
std::vector<PointSummary> Summarize(const std::vector<PointProbes>& probes);

}  // namespace penstock::train
