#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "offload/state_path.h"

namespace penstock::train {
namespace {

Result<UniqueFd> OpenFolder(const std::string& run) {
  UniqueFd fd(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, "opening the folder " + run);
  return fd;
}

}  // namespace

Result<RunLock> RunLock::Take(const std::string& run) {
  PENSTOCK_ASSIGN(UniqueFd fd, OpenFolder(run));
  PENSTOCK_TRY(offload::LockFile(fd.get(), true, run));
  return RunLock(std::move(fd));
}

Result<RunLock> RunLock::TryTake(const std::string& run) {
  PENSTOCK_ASSIGN(UniqueFd fd, OpenFolder(run));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return RunLock(std::move(fd));
  if (errno == EWOULDBLOCK) {
    return MakeError(ErrorCode::kUnavailable, "{} is in use by another process", run);
  }
  return ErrnoError(errno, "locking " + run);
}

}  // namespace penstock::train
