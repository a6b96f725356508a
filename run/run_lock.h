// The lock of a run: one process at a time may change it.
//
// The lock is on the file run.lock in RUN (base/file_lock.h says why it is a file). It is not on
// the files of the state, because a resume may move the state into other files. A process takes it
// before it reads run.json to train, clean or (if the run is not being trained) take a snapshot.
// Readers (inspect, export, compare) do not take it. Taking the lock makes the file if it is
// missing: runs of earlier programs have none. It is empty, stays when the lock ends, and is
// removed with the run. A forked child does not hold the lock.
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
  /// The same, for a run that must still be `name` in `around` once its lock is taken: the process
  /// that had the lock may have renamed the folder. Errors: kUnavailable if it is not.
  static Result<RunLock> TryTakeAt(const Folder& around, const std::string& name,
                                   const Folder& run);
  /// For a reader of RUN that must keep writers away: like Take, if RUN can be written. If it
  /// cannot, no process gets Take's lock there; then this takes a shared lock if the file exists,
  /// and none otherwise.
  static Result<RunLock> TakeToRead(const Folder& run);

  /// Removes the run's folder, which holds at most the lock's removed file: on NFS that stays in
  /// the folder under another name until it is closed. There the lock ends first; elsewhere it ends
  /// with the folder, so that no process makes the file again.
  Status RemoveFolder(const Folder& around, const std::string& name);
  /// Ends the lock, also if a fork that has just begun still has the file open.
  void Release();

 private:
  explicit RunLock(UnsharedFd locked) : locked_(std::move(locked)) {}
  UnsharedFd locked_;
};

}  // namespace penstock::train
