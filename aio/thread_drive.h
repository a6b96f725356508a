// A drive whose blocks are executed by the engine's own threads, one each at a time. Works on every
// kernel.
//
// A thread that reaps takes the next block, executes it without the serving mutex, and returns with
// its result: a block never moves between threads. Threads without a block wait; one of them is
// woken for every block that the others leave.
//
// Threads: see aio/drive.h.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "aio/drive.h"
#include "base/mutex.h"

namespace penstock::aio {

class ThreadDrive final : public Drive {
 public:
  using Time = std::chrono::steady_clock::time_point;

  ThreadDrive(Mutex& serving, int thread_count) : serving_(serving), thread_count_(thread_count) {}

  void Submit(const BlockOperation& block) override EXCLUDES(mutex_);
  void Reap(bool wait, std::vector<BlockResult>& results) override {
    if (wait) ReapUntil(std::nullopt, results);
  }
  void Wake() override EXCLUDES(mutex_);
  int thread_count() const override { return thread_count_; }
  const std::string& name() const override { return name_; }

  /// Reap that waits, but returns when `deadline` passes, too.
  void ReapUntil(std::optional<Time> deadline, std::vector<BlockResult>& results) EXCLUDES(mutex_);

 private:
  /// Returns nullopt after a Wake or the deadline.
  std::optional<BlockOperation> AwaitBlock(std::optional<Time> deadline) EXCLUDES(mutex_);

  const std::string name_ = "threads";
  Mutex& serving_;
  const int thread_count_;
  Mutex mutex_;  ///< taken with serving_ held or without, never before it
  CondVar something_to_do_;
  std::deque<BlockOperation> work_ GUARDED_BY(mutex_);
  int waiting_ GUARDED_BY(mutex_) = 0;  ///< threads
  bool woken_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock::aio
