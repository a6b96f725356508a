#include "train/tune/result.h"

#include <algorithm>

#include "base/median.h"

namespace penstock::train {
namespace {

std::vector<double> Values(const std::vector<Probe>& probes, double Probe::*member) {
  std::vector<double> values;
  for (const Probe& probe : probes) values.push_back(probe.*member);
  return values;
}

DirectionSummary SummarizeDirection(const std::vector<Probe>& probes) {
  const std::vector<double> gbps = Values(probes, &Probe::gbps);
  return {.gbps = MedianOf(gbps),
          .gbps_min = *std::ranges::min_element(gbps),
          .gbps_max = *std::ranges::max_element(gbps),
          .median_us = MedianOf(Values(probes, &Probe::median_us)),
          .p99_us = MedianOf(Values(probes, &Probe::p99_us)),
          .cpu_s_per_gb = MedianOf(Values(probes, &Probe::cpu_s_per_gb))};
}

}  // namespace

double CombinedGbps(const std::array<double, kDirections.size()>& gbps) {
  double seconds_per_gb = 0;
  for (const double speed : gbps) {
    if (speed <= 0) return 0;
    seconds_per_gb += 1 / speed;
  }
  return static_cast<double>(gbps.size()) / seconds_per_gb;
}

PointSummary Summarize(const PointProbes& probes) {
  PointSummary summary{.point = probes.point, .registration = probes.registration};
  if (probes.unavailable) {
    summary.reason = *probes.unavailable;
    return summary;
  }
  // All directions of a configuration are measured in one turn.
  const size_t rounds = probes.probes[0].size();
  if (rounds == 0) {
    summary.reason = "the time was over before its turn came";
    return summary;
  }
  for (size_t round = 0; round < rounds; ++round) {
    std::array<double, kDirections.size()> gbps{};
    for (size_t i = 0; i < gbps.size(); ++i) gbps[i] = probes.probes[i][round].gbps;
    summary.round_gbps.push_back(CombinedGbps(gbps));
  }
  for (size_t i = 0; i < kDirections.size(); ++i) {
    summary.directions[i] = SummarizeDirection(probes.probes[i]);
  }
  return summary;
}

std::vector<PointSummary> Summarize(const std::vector<PointProbes>& probes) {
  std::vector<PointSummary> summaries;
  for (const PointProbes& point : probes) summaries.push_back(Summarize(point));
  return summaries;
}

}  // namespace penstock::train
