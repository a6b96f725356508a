#include "train/run/run_lock.h"

#include <sys/file.h>

#include <cerrno>

#include "offload/state_path.h"

namespace penstock::train {

Result<RunLock> RunLock::Take(const Folder& run) {
  PENSTOCK_ASSIGN(Folder own, run.Reopen());
  PENSTOCK_TRY(offload::LockFile(own.fd(), true, run.path()));
  return RunLock(std::move(own));
}

Result<RunLock> RunLock::TryTake(const Folder& run) {
  PENSTOCK_ASSIGN(Folder own, run.Reopen());
  if (::flock(own.fd(), LOCK_EX | LOCK_NB) == 0) return RunLock(std::move(own));
  if (errno == EWOULDBLOCK) {
    return MakeError(ErrorCode::kUnavailable, "{} is in use by another process", run.path());
  }
  return ErrnoError(errno, "locking " + run.path());
}

}  // namespace penstock::train
