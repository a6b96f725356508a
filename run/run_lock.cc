#include "run/run_lock.h"

#include <fcntl.h>

#include "base/file_lock.h"

namespace penstock::train {
namespace {

using Lock = Status (*)(int fd, bool exclusive, const std::string& path);

/// Whether the file that was opened is still the run's: the run, or the file alone, may have been
/// removed while its lock was waited for.
Result<bool> IsOfRun(const UnsharedFd& file, const Folder& run) {
  const Result<FileId> own = IdOf(file.get(), run.PathOf(kLockName));
  if (!own.ok() && own.error().code == ErrorCode::kNotFound) return false;
  PENSTOCK_TRY(own.status());
  PENSTOCK_ASSIGN(const FolderEntry there, run.Look(kLockName));
  return there.kind == FolderEntry::Kind::kFile && there.id == *own;
}

/// A fork while the lock is waited for must not keep the file open either.
Result<UnsharedFd> OpenUnshared(const Folder& run, int flags) {
  return UnsharedFd::Open([&] { return run.OpenFile(kLockName, flags); });
}

Result<UnsharedFd> TakeWith(const Folder& run, Lock lock) {
  while (true) {
    PENSTOCK_ASSIGN(UnsharedFd file, OpenUnshared(run, O_RDWR | O_CREAT));
    PENSTOCK_TRY(lock(file.get(), /*exclusive=*/true, run.path()));
    PENSTOCK_ASSIGN(const bool of_run, IsOfRun(file, run));
    if (of_run) return file;
  }
}

}  // namespace

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  Release();
  locked_ = std::move(other.locked_);
  return *this;
}

void RunLock::Release() {
  UnlockFile(locked_.get());
  locked_ = UnsharedFd();
}

Result<RunLock> RunLock::Take(const Folder& run) {
  PENSTOCK_ASSIGN(UnsharedFd file, TakeWith(run, LockFile));
  return RunLock(std::move(file));
}

Result<RunLock> RunLock::TryTake(const Folder& run) {
  PENSTOCK_ASSIGN(UnsharedFd file, TakeWith(run, TryLockFile));
  return RunLock(std::move(file));
}

Result<RunLock> RunLock::TryTakeAt(const Folder& around, const std::string& name,
                                   const Folder& run) {
  PENSTOCK_ASSIGN(RunLock lock, TryTake(run));
  PENSTOCK_ASSIGN(const FolderEntry there, around.Look(name));
  PENSTOCK_ASSIGN(const FileId own, IdOf(run.fd(), run.path()));
  if (there.kind == FolderEntry::Kind::kFolder && there.id == own) return lock;
  return MakeError(ErrorCode::kUnavailable,
                   "{} was renamed or removed by another process meanwhile; try again", run.path());
}

Result<RunLock> RunLock::TakeToRead(const Folder& run) {
  Result<RunLock> lock = Take(run);
  if (lock.ok() || lock.error().code != ErrorCode::kPermission) return lock;
  Result<UnsharedFd> file = OpenUnshared(run, O_RDONLY);
  if (!file.ok() && file.error().code == ErrorCode::kNotFound) return RunLock();
  PENSTOCK_TRY(file.status());
  PENSTOCK_TRY(LockFile(file->get(), /*exclusive=*/false, run.path()));
  return RunLock(*std::move(file));
}

Status RunLock::RemoveFolder(const Folder& around, const std::string& name) {
  if (around.RemoveFolder(name).ok()) return {};
  Release();
  return around.RemoveFolder(name);
}

}  // namespace penstock::train
