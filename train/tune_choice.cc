#include "train/tune_choice.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace penstock::train {
namespace {

size_t Fastest(std::span<const PointSummary> summaries) {
  const auto fastest = std::ranges::max_element(summaries, {}, CombinedGbps);
  return static_cast<size_t>(fastest - summaries.begin());
}

/// The index with the smallest key among those that reach the share `close` of the fastest; none
/// where nothing was measured.
template <typename Key>
std::optional<size_t> SmallestOf(std::span<const PointSummary> summaries, double close, Key key) {
  if (summaries.empty()) return std::nullopt;
  const double bar = close * CombinedGbps(summaries[Fastest(summaries)]);
  if (bar <= 0) return std::nullopt;
  std::optional<size_t> best;
  for (size_t i = 0; i < summaries.size(); ++i) {
    if (CombinedGbps(summaries[i]) < bar) continue;
    if (!best || key(summaries[i]) < key(summaries[*best])) best = i;
  }
  return best;
}

}  // namespace

double CombinedGbps(const PointSummary& summary) {
  if (summary.rounds == 0) return 0;
  double seconds_per_gb = 0;
  for (const DirectionSummary& direction : summary.directions) {
    if (direction.gbps <= 0) return 0;
    seconds_per_gb += 1 / direction.gbps;
  }
  return static_cast<double>(kDirections.size()) / seconds_per_gb;
}

std::optional<GridChoice> ChoosePoint(std::span<const PointSummary> grid) {
  const std::optional<size_t> recommended =
      SmallestOf(grid, kCloseEnough, [](const PointSummary& row) {
        return std::tuple(row.point.in_flight(), row.point.queue_depth);
      });
  if (!recommended) return std::nullopt;
  return GridChoice{.ceiling = Fastest(grid), .recommended = *recommended};
}

std::optional<size_t> ChooseEngine(std::span<const PointSummary> engines) {
  const double close = std::min(kCloseEnough, 1 - TypicalSpread(engines) / 2);
  return SmallestOf(engines, close, [](const PointSummary& row) {
    double cpu = 0;
    for (const DirectionSummary& direction : row.directions) cpu += direction.cpu_s_per_gb;
    return cpu;
  });
}

double TypicalSpread(std::span<const PointSummary> summaries) {
  std::vector<double> spreads;
  for (const PointSummary& row : summaries) {
    if (row.rounds == 0) continue;
    for (const DirectionSummary& direction : row.directions) {
      if (direction.gbps > 0) {
        spreads.push_back((direction.gbps_max - direction.gbps_min) / direction.gbps);
      }
    }
  }
  return spreads.empty() ? 0 : Median(spreads);
}

}  // namespace penstock::train
