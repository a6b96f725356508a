// Decides when to report that a drive does not answer, and that it answers again. Has no thread or
// clock.
//
// It reports once whenever a block stays in the drive for too long, naming the oldest block, and
// once more when that block is back. Blocks that wait in an engine's queue are not in the drive.
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/drive.h"

namespace penstock::aio {

class StallWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `drive` is its name, for messages.
  StallWatch(size_t slots, std::chrono::nanoseconds stall_after, std::string drive);

  /// How often Look is to be called, at least.
  std::chrono::nanoseconds period() const { return stall_after_ / 4; }
  /// Precondition: the block has a request, which lives until it has returned.
  void Submitted(const BlockOperation& block, Time now);
  /// Returns whether there is something to say.
  bool Returned(uint32_t slot, Time now);
  /// Returns the line to say now; empty: none. A look that comes late is not believed: the whole
  /// process stood still, and blocks that seem to hang may be back.
  std::string Look(Time now);

 private:
  /// A block in the drive.
  struct Held {
    const Request* request = nullptr;  ///< null: the slot is free
    FileOffset offset;
    Bytes size;
    Time since;
  };
  /// A stall, from the line about a block to its return.
  struct Stall {
    uint32_t slot = 0;
    std::string block;
    Time since;
    std::optional<Time> until;
  };

  std::string LookForStall(Time now);

  const std::chrono::nanoseconds stall_after_;
  const std::string drive_;
  std::vector<Held> held_;  ///< indexed by slot
  std::optional<Stall> stall_;
  std::optional<Time> last_look_;
  std::optional<Time> last_return_;
};

}  // namespace penstock::aio
