// The lock of a run: one process at a time may change it.
//
// The lock is on the file run.lock in RUN (base/file_lock.h says why it is a file). It is not on
// the files of the state, because a resume may move the state into other files. Whoever trains,
// cleans or takes a snapshot of a run that nobody trains has it, from before run.json is read.
// Readers (inspect, export, compare) do not ask for it. Whoever takes the lock makes the file if it
// is not there: runs of earlier programs have none. It is empty, stays when the lock ends, and goes
// with the run. A forked child does not hold the lock.
#pragma once

#include <string>
#include <utility>

#include "base/folder.h"
#include "base/unshared_fd.h"

namespace penstock::train {

inline constexpr const char* kLockName = "run.lock";

class RunLock {
 public:
  /// Holds nothing.
  RunLock() = default;
  RunLock(RunLock&& other) noexcept = default;
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock() { Release(); }
  /// Waits up to 5 seconds. Errors: kUnavailable while another process has it; of making the file.
  static Result<RunLock> Take(const Folder& run);
  /// Does not wait.
  static Result<RunLock> TryTake(const Folder& run);
  /// The same, for a run that must still be `name` in `around` once its lock is taken: whoever had
  /// it may have renamed the folder. Errors: kUnavailable if it is not.
  static Result<RunLock> TryTakeAt(const Folder& around, const std::string& name,
                                   const Folder& run);
  /// For who changes nothing in RUN but may have to keep others from it: as Take, where RUN can be
  /// written. Where it cannot, nobody else gets Take's lock there either; then a shared one is
  /// taken if the file is there, and none if it is not.
  static Result<RunLock> TakeToRead(const Folder& run);

  /// Removes the run's folder, in which there is nothing but what was the lock's file. That file is
  /// gone, but on NFS it stays in the folder under another name until it is closed. Then the lock
  /// ends first; elsewhere it ends with the folder, so that nobody makes the file anew.
  Status RemoveFolder(const Folder& around, const std::string& name);
  /// Ends the lock, also if a fork that has just begun still has the file open.
  void Release();

 private:
  explicit RunLock(UnsharedFd locked) : locked_(std::move(locked)) {}
  UnsharedFd locked_;
};

}  // namespace penstock::train
