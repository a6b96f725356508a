// Plans what `penstock tune` measures: which configurations, how long each, and in which order.
//
// Plain values and arithmetic; nothing here touches a drive. Threads: any.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "aio/closed_loop.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

using aio::Seconds;

/// One configuration of the I/O engine.
struct TunePoint {
  aio::EngineKind engine = aio::EngineKind::kUring;
  Bytes block_size;
  int queue_depth = 1;
  int thread_count = 1;  ///< of the thread engine; 1 for the others

  Bytes in_flight() const { return block_size * static_cast<uint64_t>(queue_depth); }
  /// Everything else is left at its default.
  aio::EngineOptions options() const {
    return {.kind = engine,
            .block_size = block_size,
            .queue_depth = queue_depth,
            .thread_count = thread_count};
  }
  bool operator==(const TunePoint&) const = default;
};

/// How thorough a tuning is.
struct TuneScale {
  Bytes file_size;
  std::vector<Bytes> block_sizes;
  std::vector<int> queue_depths;
  int rounds = 1;  ///< odd, so that the median is one of the measurements
  aio::LoopLimit probe;
  /// Counted from the start of the command: no probe of the grid, and none of the comparison of
  /// engines, starts a block later. On a drive that is too slow for all rounds, the last rounds are
  /// left out. A drive that cannot even write the file until grid_end is refused.
  Seconds grid_end{};
  Seconds engines_end{};
};

/// 64 KiB to 16 MiB by 1 to 128, all powers of two, in less than 5 minutes. The file is several
/// times the DRAM that a drive of 1 TB has (1 GiB at most), so that a read is not served from it;
/// larger drives need a larger file.
TuneScale FullScale();
/// Every fourth size and depth of these, in less than 30 seconds.
TuneScale QuickScale();

/// What a tuning measures. The grid holds the points of the scale whose bytes in flight are at most
/// `in_flight_limit`: half of what a probe moves, because it would otherwise measure the filling
/// and draining of the queue, and a quarter of the file, because blocks in flight must not meet. No
/// drive is faster with more than these 64 MiB (32 with --quick): 10 GB/s take 6 ms for them.
struct TunePlan {
  TuneScale scale;  ///< with the actual file size and probe limit
  Bytes in_flight_limit;
  std::vector<TunePoint> grid;  ///< by block size, then depth
  std::vector<TunePoint> left_out;
};

/// Makes the plan for the grid's engine. `file_size`, if given, replaces the scale's and is rounded
/// up to whole MiB; a probe never moves more than that. Errors: kInvalidArgument below 1 MiB.
Result<TunePlan> MakePlan(TuneScale scale, std::optional<Bytes> file_size, aio::EngineKind engine);

/// Returns a configuration with the threads that it needs: the thread engine has one operation in
/// flight for each thread, so its grid is measured with as many threads as blocks (64 at most).
TunePoint MakePoint(aio::EngineKind engine, Bytes block_size, int queue_depth);

/// Returns the comparison at one block size and depth: every engine, the thread engine with 1, 2,
/// 4, ... threads up to the depth (64 at most).
std::vector<TunePoint> EnginePoints(std::span<const aio::EngineKind> engines, Bytes block_size,
                                    int queue_depth);

/// Returns the order in which round `round` (from 0) goes through `count` configurations: a
/// shuffle, so that neighbours in the table are not measured one after the other. Every odd round
/// is the reverse of the one before it, so that a configuration that came early, when a drive was
/// not throttled yet, also comes late.
std::vector<size_t> RoundOrder(size_t count, int round);

/// Returns the most that a tuning writes: the file, and what the writing probes may move.
/// `engine_points` is how many configurations the comparison of engines has at most.
Bytes MostWritten(const TunePlan& plan, size_t engine_points);

/// "1 MiB", "64 KiB": block sizes are powers of two.
std::string BlockText(Bytes block_size);

}  // namespace penstock::train
