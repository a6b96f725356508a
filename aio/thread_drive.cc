#include "aio/thread_drive.h"

#include <system_error>
#include <utility>

#include "aio/block_transfer.h"
#include "aio/thread_setup.h"

namespace penstock::aio {

Result<std::unique_ptr<ThreadDrive>> ThreadDrive::Create(int thread_count) {
  std::unique_ptr<ThreadDrive> drive(new ThreadDrive);
  try {
    for (int i = 0; i < thread_count; ++i) {
      drive->threads_.emplace_back([raw = drive.get()] { raw->Work(); });
    }
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable,
                     "starting {} I/O threads: {}; raise the limit of processes or ask for fewer",
                     thread_count, error.code().message());
  }
  return drive;
}

ThreadDrive::~ThreadDrive() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadDrive::Submit(const BlockOperation& block) {
  {
    MutexLock lock(mutex_);
    work_.push_back(block);
  }
  work_arrived_.NotifyOne();
}

void ThreadDrive::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  result_arrived_.NotifyOne();
}

void ThreadDrive::ReapUntil(size_t at_least,
                            std::optional<std::chrono::steady_clock::time_point> deadline,
                            std::vector<BlockResult>& results) {
  MutexLock lock(mutex_);
  while (results_.size() < at_least && !woken_) {
    if (!deadline) {
      result_arrived_.Wait(mutex_);
    } else if (!result_arrived_.WaitUntil(mutex_, *deadline)) {
      break;
    }
  }
  woken_ = false;
  results.insert(results.end(), results_.begin(), results_.end());
  results_.clear();
}

void ThreadDrive::Work() {
  EnterIoThread("penstock-block");
  for (;;) {
    BlockOperation block;
    {
      MutexLock lock(mutex_);
      while (work_.empty() && !stopping_) work_arrived_.Wait(mutex_);
      if (work_.empty()) return;
      block = work_.front();
      work_.pop_front();
    }
    const int64_t result = Transfer(block);
    {
      MutexLock lock(mutex_);
      results_.push_back({block.slot, result});
    }
    result_arrived_.NotifyOne();
  }
}

}  // namespace penstock::aio
