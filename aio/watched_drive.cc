#include "aio/watched_drive.h"

#include <utility>

#include "aio/thread_setup.h"
#include "base/thread.h"

namespace penstock::aio {

using std::chrono::steady_clock;

WatchedDrive::WatchedDrive(std::unique_ptr<Drive> base, int queue_depth,
                           std::chrono::nanoseconds stall_after, Say say)
    : LayeredDrive(std::move(base)),
      say_(std::move(say)),
      watch_(static_cast<size_t>(queue_depth), stall_after, LayeredDrive::name()) {
  Result<std::thread> thread = StartThread("watching the drive", [this] {
    EnterIoThread("penstock-watch");
    Run();
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    say_("a drive that stops answering is not reported: " + thread.error().message);
  }
}

WatchedDrive::~WatchedDrive() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

void WatchedDrive::Submit(const BlockOperation& block) {
  {
    MutexLock lock(mutex_);
    watch_.Submitted(block, steady_clock::now());
  }
  base().Submit(block);
}

void WatchedDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  const size_t before = results.size();
  base().Reap(wait, results);
  if (results.size() == before) return;
  bool answered = false;
  {
    MutexLock lock(mutex_);
    const auto now = steady_clock::now();
    for (size_t i = before; i < results.size(); ++i) {
      answered = watch_.Returned(results[i].slot, now) || answered;
    }
  }
  if (answered) changed_.NotifyOne();
}

void WatchedDrive::Run() {
  MutexLock lock(mutex_);
  while (!ending_) {
    changed_.WaitUntil(mutex_, steady_clock::now() + watch_.period());
    if (ending_) return;
    const std::string line = watch_.Look(steady_clock::now());
    if (line.empty()) continue;
    const MutexUnlock unlocked(mutex_);
    say_(line);
  }
}

}  // namespace penstock::aio
