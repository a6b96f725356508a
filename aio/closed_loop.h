// A closed loop: keeps exactly `queue_depth` requests of one block each in flight until a limit is
// reached, then waits for the last of them.
//
// The completion callback of a block submits the next one into its buffer, so that no other thread
// is woken between two blocks. The blocks cover a part of the file in order, from a position on,
// again and again. With both directions, reads go through its first half and writes through the
// second, in turn.
//
// Threads: Run on one; the callbacks come on the engine's.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "aio/aio.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

using Seconds = std::chrono::duration<double>;

/// Whether to end early. Called for every block, from the engine's threads as well.
using StopRequested = std::function<bool()>;

/// kBoth: reads and writes in turn, equal bytes of each.
enum class Direction { kRead, kWrite, kBoth };
inline constexpr std::array kDirections = {Direction::kRead, Direction::kWrite, Direction::kBoth};
const char* ToString(Direction direction);

/// A loop starts no further block when it has moved `bytes` or lasted for `time`. It always starts
/// its first block.
struct LoopLimit {
  Bytes bytes;
  Seconds time{};
};

/// Block offsets in [begin, begin + size), one after the other, starting over at the end; what is
/// left there when no whole block fits is not used.
class BlockWalk {
 public:
  /// Starts at the block that holds `position` bytes from the beginning, modulo the walk's length.
  /// Precondition: block_size <= size.
  BlockWalk(FileOffset begin, Bytes size, Bytes block_size, Bytes position);
  FileOffset Next();

 private:
  FileOffset begin_;
  uint64_t blocks_;
  Bytes block_size_;
  uint64_t next_;
};

class ClosedLoop {
 public:
  struct Options {
    Engine* engine = nullptr;  ///< its own blocks are not smaller, or the depth is of requests only
    const File* file = nullptr;
    FileOffset begin;  ///< begin of the used part of the file
    Bytes size;        ///< size of that part: at least one block, two for both directions
    Bytes position;    ///< first position in it
    std::span<std::byte> buffers;  ///< block_size * queue_depth bytes at least
    Bytes block_size;
    int queue_depth = 1;
    Direction direction = Direction::kRead;
    LoopLimit limit;
    StopRequested stop = [] { return false; };  ///< ends the loop like the limit
  };
  struct Outcome {
    Bytes moved;
    Bytes written;      ///< bytes of these that were written
    Seconds elapsed{};  ///< time from the first submission to the last completion
    std::vector<double> latencies_us;
  };

  explicit ClosedLoop(Options options);
  /// Called once. Errors: the first one of a request.
  Result<Outcome> Run() EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  void OnComplete(size_t slot, const Status& status) EXCLUDES(mutex_);
  /// The next block, into `slot`, unless the loop is to end.
  std::optional<Request> Next(size_t slot, Clock::time_point now) REQUIRES(mutex_);
  bool AtEnd(Clock::time_point now) const REQUIRES(mutex_);

  const Options options_;
  Clock::time_point start_;

  Mutex mutex_;
  CondVar idle_;
  BlockWalk reads_ GUARDED_BY(mutex_);
  BlockWalk writes_ GUARDED_BY(mutex_);
  std::vector<Clock::time_point> submitted_at_ GUARDED_BY(mutex_);  ///< indexed by slot
  uint64_t submitted_ GUARDED_BY(mutex_) = 0;                       ///< blocks
  int in_flight_ GUARDED_BY(mutex_) = 0;
  Clock::time_point last_completion_ GUARDED_BY(mutex_);
  Status failure_ GUARDED_BY(mutex_);
  Outcome outcome_ GUARDED_BY(mutex_);
};

}  // namespace penstock::aio
