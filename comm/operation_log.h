// The last operations of a rank, for the report that it leaves when the job fails.
//
// A ring of fixed size: adding allocates no memory once names have been as long. Pure. Threads: one
// at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/job.h"
#include "comm/sockets.h"
#include "comm/world.h"

namespace penstock::comm {

class OperationLog {
 public:
  /// How many moments are kept. An operation has three.
  static constexpr size_t kKept = 384;

  void Add(const Operation& operation, OperationState state, SteadyTime now);
  /// Returns a line for each moment, the newest last: how long before `now` it was, what it was,
  /// and of which operation.
  std::string Text(SteadyTime now) const;

 private:
  struct Moment {
    SteadyTime at;
    OperationState state = OperationState::kEnqueued;
    Operation operation;
  };
  std::vector<Moment> moments_;
  size_t next_ = 0;  ///< place of the next one, and of the oldest once all are there
};

}  // namespace penstock::comm
