// A commit that is made beside training: on a thread of its own, or, where there is none, when it
// is finished.
//
// Threads: one begins and finishes it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "base/result.h"
#include "base/thread.h"

namespace penstock::zero {

class PendingCommit {
 public:
  /// Begins to `make` the commit; what that uses outlives the object.
  explicit PendingCommit(std::function<Status()> make) : make_(std::move(make)) {
    Result<std::thread> thread = StartThread("commits", [this]() { Run(); });
    if (thread.ok()) thread_ = *std::move(thread);
  }
  ~PendingCommit() { static_cast<void>(Finish()); }
  PendingCommit(const PendingCommit&) = delete;
  PendingCommit& operator=(const PendingCommit&) = delete;

  /// Whether it has ended, for any reason.
  bool ended() const { return ended_; }
  /// Whether it has ended, and was made.
  bool made() const { return ended_ && outcome_.ok(); }
  /// Waits for its end, and returns what it came to.
  Status Finish() {
    if (thread_.joinable()) thread_.join();
    if (!ended_) Run();
    return outcome_;
  }

 private:
  void Run() {
    outcome_ = make_();
    ended_ = true;
  }

  const std::function<Status()> make_;
  std::thread thread_;
  Status outcome_;
  std::atomic<bool> ended_ = false;
};

}  // namespace penstock::zero
