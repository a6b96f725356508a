// Chooses the configuration that `penstock tune` recommends.
//
// A configuration has to serve three kinds of work, so it is judged by one number: the harmonic
// mean of its median speeds in reading, writing and both, which is the speed of a job that moves
// the same bytes in each way. The ceiling is the best such mean of the grid.
//
// Recommended is the smallest configuration within 2 % of the ceiling. Smallest means the fewest
// bytes in flight (block size times depth), because they are pinned host memory, and an urgent read
// waits behind them. Among equal bytes in flight, it means the smaller depth, because fewer, larger
// blocks cost less CPU time.
//
// The engine is chosen last, among rows that were measured in turn in the same rounds at that block
// size and depth: of those that are as fast as the fastest, the one that costs least CPU time,
// because the optimizer needs the cores. Speeds are compared within rounds, as shares of the
// round's median, so that a drive that is throttled from one round to the next says nothing about
// the engines. As fast means within half of the amount by which these shares of one row differ
// between rounds, but at least 2 % and at most 10 %.
//
// Plain arithmetic. Threads: any.
#pragma once

#include <optional>
#include <span>

#include "train/tune/result.h"

namespace penstock::train {

inline constexpr double kCloseEnough = 0.98;
inline constexpr double kFarthestClose = 0.9;  ///< for any difference between rounds

/// Returns GB/s over the medians of the three directions; 0 if it was not measured.
double CombinedGbps(const PointSummary& summary);

struct GridChoice {
  size_t ceiling = 0;  ///< index of the fastest
  size_t recommended = 0;
};
/// Returns nothing if nothing was measured.
std::optional<GridChoice> ChoosePoint(std::span<const PointSummary> grid);

/// Returns the index of the engine (and thread count) to use; none if nothing was measured.
std::optional<size_t> ChooseEngine(std::span<const PointSummary> engines);

/// Returns how far apart the rounds of one configuration are: (max - min) / median of the speed, as
/// the median over all configurations and directions; 0.1 is 10 %. Smaller differences mean
/// nothing.
double TypicalSpread(std::span<const PointSummary> summaries);

}  // namespace penstock::train
