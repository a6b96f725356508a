#include "front/call_team.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace penstock::front {

CallTeam::~CallTeam() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CallTeam::Start() {
  started_ = true;
  const auto wanted = static_cast<uint64_t>(std::max(wanted_, 1));
  threads_.reserve(wanted);
  while (threads_.size() < wanted) {
    const uint64_t number = threads_.size();
    Result<std::thread> thread = StartThread(name_, [this, number] { Run(number); });
    if (!thread.ok()) break;
    threads_.push_back(*std::move(thread));
  }
  size_ = threads_.size();
}

void CallTeam::Add(device::Event before, Work work, std::function<void()> done) {
  if (!started_) Start();
  if (size_ == 0) {
    before.Wait();
    work({.number = 0, .of = 1});
    done();
    return;
  }
  MutexLock lock(mutex_);
  while (calls_.size() >= kMaxQueued) one_done_.Wait(mutex_);
  calls_.push_back({.before = std::move(before),
                    .work = std::move(work),
                    .done = std::move(done),
                    .left = size_});
  changed_.NotifyAll();
}

void CallTeam::Drain() {
  MutexLock lock(mutex_);
  while (!calls_.empty()) one_done_.Wait(mutex_);
}

/// One thread waits for the event, and the others wait for that thread.
void CallTeam::Await(Call& call) {
  while (!call.reached) {
    if (call.awaited) {
      changed_.Wait(mutex_);
      continue;
    }
    call.awaited = true;
    {
      const MutexUnlock unlocked(mutex_);
      call.before.Wait();
    }
    call.reached = true;
    changed_.NotifyAll();
  }
}

void CallTeam::Run(uint64_t number) {
  ::pthread_setname_np(::pthread_self(), name_.substr(0, kMaxThreadName).c_str());
  MutexLock lock(mutex_);
  for (uint64_t next = 0;; ++next) {
    while (next == first_ + calls_.size() && !ending_) changed_.Wait(mutex_);
    if (next == first_ + calls_.size()) return;
    Call& call = calls_[next - first_];  // stays where it is until this thread has done its share
    Await(call);
    {
      const MutexUnlock unlocked(mutex_);
      call.work({.number = number, .of = size_});
    }
    if (--call.left > 0) continue;
    // The call is the first one left, and stays: this thread has no share of a later call.
    {
      const MutexUnlock unlocked(mutex_);
      call.done();
    }
    calls_.pop_front();
    ++first_;
    one_done_.NotifyAll();
  }
}

}  // namespace penstock::front
