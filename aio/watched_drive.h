// A drive that reports when the drive below it does not answer (aio/stall_watch.h).
//
// A block that hangs in the kernel blocks the threads of its engine, so this drive has its own
// thread that checks the clock.
//
// Owns the base drive and the thread. Threads: see aio/drive.h; `say` is called on its own thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aio/layered_drive.h"
#include "aio/stall_watch.h"
#include "base/mutex.h"
#include "base/result.h"

namespace penstock::aio {

class WatchedDrive final : public LayeredDrive {
 public:
  using Say = std::function<void(const std::string& line)>;

  /// If the watching thread cannot start, reports that, and behaves like the base drive.
  WatchedDrive(std::unique_ptr<Drive> base, int queue_depth, std::chrono::nanoseconds stall_after,
               Say say);
  ~WatchedDrive() override;

  void Submit(const BlockOperation& block) override EXCLUDES(mutex_);
  void Reap(bool wait, std::vector<BlockResult>& results) override EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const Say say_;
  Mutex mutex_;
  CondVar changed_;
  StallWatch watch_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock::aio
