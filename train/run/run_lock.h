// The lock of a run: one process at a time may change it.
//
// The lock is on RUN itself, not on the files of its state, because a resume may move the state
// into other files. Whoever trains, cleans or takes a snapshot of a run that nobody trains has it,
// from before run.json is read. Readers (inspect, export, compare) do not ask for it.
#pragma once

#include <utility>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

class RunLock {
 public:
  /// Waits up to 5 seconds. Errors: kUnavailable while another process has it.
  static Result<RunLock> Take(const Folder& run);
  /// Does not wait.
  static Result<RunLock> TryTake(const Folder& run);

 private:
  explicit RunLock(Folder locked) : locked_(std::move(locked)) {}
  Folder locked_;  ///< with a descriptor of its own, whose closing ends the lock
};

}  // namespace penstock::train
