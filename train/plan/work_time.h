// How long a piece of work takes by itself, on a machine that other programs may use meanwhile.
//
// A round counts by the processor that the thread takes which works, or leads the team that works
// and waits for it actively: so waiting for a processor that others have is not in it. Rounds that
// others have interrupted are repeated a while. Their median counts: the leader of a team does less
// of the work where others held it up, and more where they held up the rest.
//
// Threads: the main thread, while the program does nothing else.
#pragma once

#include <chrono>
#include <functional>

#include "base/result.h"

namespace penstock::train {

/// How far the calling thread has come.
struct WorkInstant {
  std::chrono::steady_clock::time_point time;
  double processor_s = 0;  ///< that the thread has taken
  long interruptions = 0;  ///< of all threads, because others wanted the processor

  static WorkInstant Now();
};

/// From before the work to behind it, on the thread that works or leads the team.
struct WorkSpan {
  WorkInstant begin;
  WorkInstant end;
};

class WorkTime {
 public:
  /// Returns seconds. One round more comes first, which touches the memory and does not count.
  /// Errors: those of `work`.
  Result<double> Of(const std::function<Result<WorkSpan>()>& work);

  /// Whether other programs interrupted most of the rounds, so that a training beside them is
  /// slower than this.
  bool interrupted() const { return 2 * interrupted_ > rounds_; }

 private:
  int rounds_ = 0;
  int interrupted_ = 0;
};

}  // namespace penstock::train
