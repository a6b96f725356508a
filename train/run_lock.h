// Who may change a run: one process at a time.
//
// The lock is on RUN itself, not on the files of its state, because a resume may move the state
// into other files. Whoever trains, cleans or takes a snapshot of a run that nobody trains has it,
// from before run.json is read. Readers (inspect, export, compare) do not ask for it.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::train {

class RunLock {
 public:
  /// Waits up to 5 seconds. Errors: kNotFound, kPermission; kUnavailable while another process has
  /// it.
  static Result<RunLock> Take(const std::string& run);
  /// Does not wait.
  static Result<RunLock> TryTake(const std::string& run);

 private:
  explicit RunLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace penstock::train
