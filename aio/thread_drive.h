// A drive of threads that each carry out one block at a time. Works on every kernel.
//
// Owns its threads; they end with it. Threads: see aio/drive.h.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aio/drive.h"
#include "base/mutex.h"

namespace penstock::aio {

class ThreadDrive final : public Drive {
 public:
  /// Starts `thread_count` threads. Errors: kUnavailable where the system refuses more threads.
  static Result<std::unique_ptr<ThreadDrive>> Create(int thread_count);
  ~ThreadDrive() override;

  void Submit(const BlockOperation& block) override EXCLUDES(mutex_);
  void Reap(size_t at_least, std::vector<BlockResult>& results) override {
    ReapUntil(at_least, std::nullopt, results);
  }
  void Wake() override EXCLUDES(mutex_);
  const std::string& name() const override { return name_; }

  /// Reap that returns when `deadline` passes, too.
  void ReapUntil(size_t at_least, std::optional<std::chrono::steady_clock::time_point> deadline,
                 std::vector<BlockResult>& results) EXCLUDES(mutex_);

 private:
  ThreadDrive() = default;
  void Work() EXCLUDES(mutex_);

  const std::string name_ = "threads";
  Mutex mutex_;
  CondVar work_arrived_;
  CondVar result_arrived_;
  std::deque<BlockOperation> work_ GUARDED_BY(mutex_);
  std::vector<BlockResult> results_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::aio
