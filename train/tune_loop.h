// A closed loop: keeps exactly `queue_depth` requests of one block each in flight until a limit is
// reached, then waits for the last of them.
//
// The completion callback of a block submits the next one into its buffer, so that no thread of
// ours has to be woken between two blocks. The blocks go through the file from its position on, in
// order, over and over; with both directions reads go through its first half and writes through the
// second, in turn.
//
// Threads: Run on one; the callbacks come on the engine's.
#pragma once

#include <chrono>
#include <vector>

#include "aio/aio.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "train/tune_file.h"
#include "train/tune_result.h"

namespace penstock::train {

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
  /// The buffers of `file` hold block_size * queue_depth bytes at least, and its size is twice
  /// block_size at least. The engine's own block size is not less than `block_size`.
  struct Options {
    aio::Engine* engine = nullptr;
    TuneFile* file = nullptr;
    Bytes block_size;
    int queue_depth = 1;
    Direction direction = Direction::kRead;
    ProbeLimit limit;
    StopRequested stop;  ///< ends the loop as the limit does
  };
  struct Outcome {
    Bytes moved;
    Seconds elapsed{};  ///< from the first submission to the last completion
    std::vector<double> latencies_us;
  };

  explicit ClosedLoop(Options options);
  /// Called once. Moves the file's position on and counts what it writes. Errors: the first one of
  /// a request.
  Result<Outcome> Run() EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  /// Submits the next block into `slot`, unless the loop is to end.
  void Launch(size_t slot) EXCLUDES(mutex_);
  void OnComplete(size_t slot, const Status& status) EXCLUDES(mutex_);
  bool AtEnd(Clock::time_point now) const REQUIRES(mutex_);
  aio::Request NextRequest(size_t slot) REQUIRES(mutex_);

  const Options options_;
  Clock::time_point start_;

  Mutex mutex_;
  CondVar idle_;
  BlockWalk reads_ GUARDED_BY(mutex_);
  BlockWalk writes_ GUARDED_BY(mutex_);
  std::vector<Clock::time_point> submitted_at_ GUARDED_BY(mutex_);  ///< by slot
  uint64_t submitted_ GUARDED_BY(mutex_) = 0;                       ///< blocks
  uint64_t written_ GUARDED_BY(mutex_) = 0;                         ///< of these, to write
  int in_flight_ GUARDED_BY(mutex_) = 0;
  Clock::time_point last_completion_ GUARDED_BY(mutex_);
  Status failure_ GUARDED_BY(mutex_);
  Outcome outcome_ GUARDED_BY(mutex_);
};

}  // namespace penstock::train
