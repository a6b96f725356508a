// Receives signals as values, without a handler.
//
// Threads: the main thread, while there is no other one.
#pragma once

#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::train {

class SignalQueue {
 public:
  /// From now on SIGINT, SIGTERM, SIGHUP, SIGTSTP and SIGCHLD wait in the queue; SIGHUP and SIGTSTP
  /// only if they were not ignored (nohup). This lasts until the process ends: signals after the
  /// end of the work change nothing.
  static Result<SignalQueue> Create();

  /// A descriptor that is readable if there are signals.
  int fd() const { return fd_.get(); }
  /// Returns the received signals, in order, without waiting.
  std::vector<int> Take() const;
  /// Stops this process as SIGTSTP does by default, and returns when it is continued.
  static void StopUntilContinued();

 private:
  explicit SignalQueue(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace penstock::train
