#include "train/tune/choice.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/median.h"

namespace penstock::train {
namespace {

/// The index with the smallest key among those whose speed reaches the share `close` of the
/// greatest; none where no speed is above 0.
template <typename Key>
std::optional<size_t> SmallestOf(std::span<const double> speeds, double close, Key key) {
  const double greatest = speeds.empty() ? 0 : std::ranges::max(speeds);
  if (greatest <= 0) return std::nullopt;
  std::optional<size_t> best;
  for (size_t i = 0; i < speeds.size(); ++i) {
    if (speeds[i] < close * greatest) continue;
    if (!best || key(i) < key(*best)) best = i;
  }
  return best;
}

/// The rounds in which every row was measured that was measured at all: the last one may have come
/// to an end in between.
size_t CommonRounds(std::span<const PointSummary> rows) {
  std::optional<size_t> rounds;
  for (const PointSummary& row : rows) {
    if (row.measured())
      rounds = std::min(rounds.value_or(row.round_gbps.size()), row.round_gbps.size());
  }
  return rounds.value_or(0);
}

/// For each row and round, its speed over the median speed of the round; no rounds if the row was
/// not measured.
std::vector<std::vector<double>> SharesOfRounds(std::span<const PointSummary> rows) {
  std::vector<std::vector<double>> shares(rows.size());
  for (size_t round = 0; round < CommonRounds(rows); ++round) {
    std::vector<double> speeds;
    for (const PointSummary& row : rows) {
      if (row.measured()) speeds.push_back(row.round_gbps[round]);
    }
    const double typical = MedianOf(speeds);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].measured()) shares[i].push_back(rows[i].round_gbps[round] / typical);
    }
  }
  return shares;
}

/// (max - min) / median.
double Spread(const std::vector<double>& values) {
  return (std::ranges::max(values) - std::ranges::min(values)) / MedianOf(values);
}

double CpuSecondsPerGb(const PointSummary& row) {
  double cpu = 0;
  for (const DirectionSummary& direction : row.directions) cpu += direction.cpu_s_per_gb;
  return cpu;
}

}  // namespace

double CombinedGbps(const PointSummary& summary) {
  std::array<double, kDirections.size()> gbps{};
  for (size_t i = 0; i < gbps.size(); ++i) gbps[i] = summary.directions[i].gbps;
  return CombinedGbps(gbps);
}

std::optional<GridChoice> ChoosePoint(std::span<const PointSummary> grid) {
  std::vector<double> speeds;
  for (const PointSummary& row : grid) speeds.push_back(CombinedGbps(row));
  const std::optional<size_t> recommended = SmallestOf(speeds, kCloseEnough, [&](size_t i) {
    return std::tuple(grid[i].point.in_flight(), grid[i].point.queue_depth);
  });
  if (!recommended) return std::nullopt;
  const auto ceiling = std::ranges::max_element(speeds) - speeds.begin();
  return GridChoice{.ceiling = static_cast<size_t>(ceiling), .recommended = *recommended};
}

std::optional<size_t> ChooseEngine(std::span<const PointSummary> engines) {
  std::vector<double> speeds;
  std::vector<double> spreads;
  for (const std::vector<double>& shares : SharesOfRounds(engines)) {
    speeds.push_back(shares.empty() ? 0 : MedianOf(shares));
    if (!shares.empty()) spreads.push_back(Spread(shares));
  }
  if (spreads.empty()) return std::nullopt;
  const double close = std::clamp(1 - MedianOf(spreads) / 2, kFarthestClose, kCloseEnough);
  return SmallestOf(speeds, close, [&](size_t i) { return CpuSecondsPerGb(engines[i]); });
}

double TypicalSpread(std::span<const PointSummary> summaries) {
  std::vector<double> spreads;
  for (const PointSummary& row : summaries) {
    for (const DirectionSummary& direction : row.directions) {
      if (direction.gbps <= 0) continue;
      spreads.push_back((direction.gbps_max - direction.gbps_min) / direction.gbps);
    }
  }
  return spreads.empty() ? 0 : MedianOf(spreads);
}

}  // namespace penstock::train
