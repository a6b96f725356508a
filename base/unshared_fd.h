// A file descriptor whose file a forked child does not keep open, such as one that holds a lock.
//
// In a child of a fork the number stands for /dev/null, so that a copy of the object can be
// destroyed there as usual. A child made by vfork or posix_spawn has the file until it runs its
// program, if the descriptor was opened with O_CLOEXEC.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock {

class UnsharedFd {
 public:
  UnsharedFd() = default;
  explicit UnsharedFd(UniqueFd fd);
  /// Opens a file with `open`. No fork comes between that and what keeps children from the file.
  static Result<UnsharedFd> Open(const std::function<Result<UniqueFd>()>& open);
  UnsharedFd(UnsharedFd&& other) noexcept = default;
  UnsharedFd& operator=(UnsharedFd&& other) noexcept;
  ~UnsharedFd();

  bool valid() const { return fd_.valid(); }
  int get() const { return fd_.get(); }
  /// Gives up the descriptor, which children get again: the caller closes it.
  int Release();

 private:
  struct Registered {};
  UnsharedFd(UniqueFd fd, Registered /*tag*/) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace penstock
