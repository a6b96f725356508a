// A drive with one pipe for reads and one for writes, or one for both, that passes blocks one after
// the other: aio's simulated engine in virtual time.
//
// Requests are cut into blocks. The drive has as many blocks as the queue is deep, in the order in
// which they arrived; which of those that wait gets a place is decided as in aio::Priority.
//
// Threads: one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "aio/aio.h"
#include "base/units.h"
#include "sim/clock.h"

namespace penstock::sim {

struct DriveSpeed {
  double read_bytes_a_second = 0;  ///< 0: reads take no time
  double write_bytes_a_second = 0;
  bool shared = false;  ///< one pipe for both
  Seconds latency = 0;  ///< latency of a block; latencies overlap
  Bytes block = aio::kDefaultBlockSize;
  int queue_depth = aio::kDefaultQueueDepth;
};

/// Returns how long an otherwise idle drive needs for this many bytes.
Seconds TimeOf(const DriveSpeed& drive, double read_bytes, double write_bytes);

class Drive {
 public:
  /// `clock` outlives the drive.
  Drive(Clock& clock, const DriveSpeed& speed) : clock_(clock), speed_(speed) {}
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  /// Calls `done` when the last block of `size` > 0 has passed.
  void Submit(aio::Operation operation, Bytes size, aio::Priority priority,
              std::function<void()> done);
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t write_bytes() const { return write_bytes_; }

 private:
  struct Request {
    aio::Operation operation{};
    Bytes waiting;        ///< has no place on the drive yet
    uint64_t blocks = 0;  ///< blocks that have not passed
    uint64_t sequence = 0;
    aio::Priority priority{};
    std::function<void()> done;
  };
  size_t NextClass() const;
  void Fill();
  void Enter(const std::shared_ptr<Request>& request);

  Clock& clock_;
  const DriveSpeed speed_;
  std::array<std::deque<std::shared_ptr<Request>>, aio::kPriorityCount> waiting_;
  /// Blocks of higher classes that entered while the class waited.
  std::array<int, aio::kPriorityCount> passed_over_{};
  uint64_t submitted_ = 0;
  std::array<Seconds, 2> pipe_free_{};
  int on_drive_ = 0;
  int write_backs_on_drive_ = 0;
  uint64_t read_bytes_ = 0;
  uint64_t write_bytes_ = 0;
};

}  // namespace penstock::sim
