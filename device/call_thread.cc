#include "device/call_thread.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/exception_name.h"
#include "base/thread.h"

namespace penstock::device {

CallThread::~CallThread() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    not_empty_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

void CallThread::Add(Event before, std::function<void()> function) {
  Call call{std::move(before), std::move(function)};
  if (!thread_.joinable() && !Start()) {
    Execute(std::move(call));
    return;
  }
  MutexLock lock(mutex_);
  while (queue_.size() >= kMaxQueued) one_done_.Wait(mutex_);
  queue_.push_back(std::move(call));
  if (queue_.size() == 1) not_empty_.NotifyOne();
}

void CallThread::Drain() {
  MutexLock lock(mutex_);
  while (!queue_.empty()) one_done_.Wait(mutex_);
}

bool CallThread::Start() {
  Result<std::thread> started = StartThread("calls of stream " + stream_, [this] { Run(); });
  if (!started.ok()) return false;
  thread_ = *std::move(started);
  return true;
}

void CallThread::Run() {
  ::pthread_setname_np(::pthread_self(), ("calls " + stream_).substr(0, kMaxThreadName).c_str());
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.empty() && !ending_) not_empty_.Wait(mutex_);
    if (queue_.empty()) return;
    Call call = std::move(queue_.front());
    {
      const MutexUnlock unlocked(mutex_);
      Execute(std::move(call));
    }
    queue_.pop_front();
    one_done_.NotifyAll();
  }
}

void CallThread::Execute(Call&& call) const {
  const Call held = std::move(call);  // and what it holds is gone when this returns
  held.before.Wait();
  try {
    held.function();
  } catch (const std::exception& exception) {
    PENSTOCK_CHECK(false, "stream {}: a call has thrown: {}", stream_, ExceptionName(exception));
  } catch (...) {
    PENSTOCK_CHECK(false, "stream {}: a call has thrown", stream_);
  }
}

}  // namespace penstock::device
