#include "base/unshared_fd.h"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>
#include <set>
#include <utility>

namespace penstock {
namespace {

struct Registry {
  std::mutex mutex;  ///< which the handlers of a fork hold across functions
  std::set<int> fds;
};

/// Never destroyed: a fork may come at the end of the process.
Registry& All() {
  static auto* const all = new Registry;
  return *all;
}

void BeforeFork() { All().mutex.lock(); }
void AfterFork() { All().mutex.unlock(); }

/// If /dev/null cannot be opened, the descriptors are closed: then nothing else may be done in this
/// child that opens files and destroys an UnsharedFd afterwards.
void InChild() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : All().fds) {
    if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (null >= 0) ::close(null);
  All().fds.clear();
  All().mutex.unlock();
}

/// To be called before the mutex is locked.
void AskForForks() {
  static const bool registered = ::pthread_atfork(BeforeFork, AfterFork, InChild) == 0;
  static_cast<void>(registered);  // without it, children keep the file open
}

}  // namespace

UnsharedFd::UnsharedFd(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_.valid()) return;
  AskForForks();
  const std::lock_guard lock(All().mutex);
  All().fds.insert(fd_.get());
}

Result<UnsharedFd> UnsharedFd::Open(const std::function<Result<UniqueFd>()>& open) {
  AskForForks();
  const std::lock_guard lock(All().mutex);
  PENSTOCK_ASSIGN(UniqueFd fd, open());
  if (fd.valid()) All().fds.insert(fd.get());
  return UnsharedFd(std::move(fd), Registered{});
}

UnsharedFd& UnsharedFd::operator=(UnsharedFd&& other) noexcept {
  UnsharedFd taken(std::move(other));
  std::swap(fd_, taken.fd_);
  return *this;
}

UnsharedFd::~UnsharedFd() {
  if (!fd_.valid()) return;
  const std::lock_guard lock(All().mutex);  // another thread may open the number right after
  All().fds.erase(fd_.get());
  fd_ = UniqueFd();
}

int UnsharedFd::Release() {
  if (!fd_.valid()) return -1;
  const std::lock_guard lock(All().mutex);
  All().fds.erase(fd_.get());
  return fd_.Release();
}

}  // namespace penstock
