#include "base/for_each_index.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace penstock {
namespace {

class Row {
 public:
  Row(size_t count, const std::function<Status(size_t)>& work) : count_(count), work_(work) {}

  void Run() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    // What comes before a failure has begun already: so the first one is found.
    while (next_ < count_ && failed_ == count_) {
      const size_t index = next_++;
      Status status;
      {
        const MutexUnlock unlocked(mutex_);
        status = Do(index);
      }
      if (status.ok() || index > failed_) continue;
      failed_ = index;
      failure_ = std::move(status);
    }
  }
  Status failure() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return failure_;
  }

 private:
  Status Do(size_t index) const {
    try {
      return work_(index);
    } catch (const std::bad_alloc&) {
      return MakeError(ErrorCode::kOutOfMemory, "the host has no memory left");
    }
  }

  const size_t count_;
  const std::function<Status(size_t)>& work_;
  Mutex mutex_;
  size_t next_ GUARDED_BY(mutex_) = 0;
  size_t failed_ GUARDED_BY(mutex_) = count_;  ///< the smallest index that has failed, or none
  Status failure_ GUARDED_BY(mutex_);
};

}  // namespace

Status ForEachIndex(size_t count, int threads, const std::function<Status(size_t)>& work) {
  Row row(count, work);
  size_t wanted = std::min(static_cast<size_t>(std::max(threads, 1)), count);
  std::vector<std::thread> others;
  try {
    others.reserve(wanted);
  } catch (const std::bad_alloc&) {
    wanted = 1;  // without memory for others, the calling thread does it alone
  }
  while (others.size() + 1 < wanted) {
    Result<std::thread> other = StartThread("work on a row", [&row] { row.Run(); });
    if (!other.ok()) break;  // those that there are do it
    others.push_back(*std::move(other));
  }
  row.Run();
  for (std::thread& other : others) other.join();
  return row.failure();
}

}  // namespace penstock
