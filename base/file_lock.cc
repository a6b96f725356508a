#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/check.h"

namespace penstock {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kInterval = std::chrono::milliseconds(50);

/// What NFS would refuse is a bug everywhere, so that no test needs NFS to find it.
void CheckFits(int fd, bool exclusive, const std::string& path) {
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;  // on NFS it may be gone: then the lock says so
  const bool regular = !known || S_ISREG(info.st_mode);
  const int mode = ::fcntl(fd, F_GETFL) & O_ACCMODE;
  PENSTOCK_CHECK(regular, "a lock of {}, which is no regular file", path);
  PENSTOCK_CHECK(mode != (exclusive ? O_RDONLY : O_WRONLY),
                 "a lock of {} through a descriptor that is not open for {}", path,
                 exclusive ? "writing" : "reading");
}

/// Whether the lock was taken; not if another process has it.
Result<bool> TryOnce(int fd, bool exclusive, const std::string& path) {
  int result = 0;
  do {
    result = ::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return ErrnoError(errno, "locking " + path);
}

Error InUse(const std::string& path) {
  return MakeError(ErrorCode::kUnavailable,
                   "{} is in use by another process; wait for it or stop it", path);
}

}  // namespace

Status LockFile(int fd, bool exclusive, const std::string& path) {
  CheckFits(fd, exclusive, path);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    PENSTOCK_ASSIGN(const bool locked, TryOnce(fd, exclusive, path));
    if (locked) return {};
    if (std::chrono::steady_clock::now() >= deadline) return InUse(path);
    std::this_thread::sleep_for(kInterval);
  }
}

Status TryLockFile(int fd, bool exclusive, const std::string& path) {
  CheckFits(fd, exclusive, path);
  PENSTOCK_ASSIGN(const bool locked, TryOnce(fd, exclusive, path));
  return locked ? Status() : Status(InUse(path));
}

void UnlockFile(int fd) {
  if (fd >= 0) static_cast<void>(::flock(fd, LOCK_UN));
}

}  // namespace penstock
