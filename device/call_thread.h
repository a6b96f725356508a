// A thread that executes a stream's calls, for a device whose streams are not threads of this
// process.
//
// Each call has an event of the work before it, and runs when that is reached, after earlier calls.
// So calls do not delay the stream, and also run after a failure of the device, whose events are
// all reached. The thread starts with the first call.
//
// Threads: one thread at a time feeds it; calls may not feed any stream.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "device/device.h"

namespace penstock::device {

class CallThread {
 public:
  /// A feeder that is this many calls ahead is held back until one of them has run.
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  /// `stream` names the thread.
  explicit CallThread(std::string stream) : stream_(std::move(stream)) {}
  /// Carries out what is left.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  void Add(Event before, std::function<void()> function) EXCLUDES(mutex_);
  /// Blocks until all calls have run and are destroyed.
  void Drain() EXCLUDES(mutex_);

 private:
  struct Call {
    Event before;
    std::function<void()> function;
  };

  /// Whether there is a thread now: the process may have no more.
  bool Start();
  void Run() EXCLUDES(mutex_);
  void Execute(Call&& call) const;

  const std::string stream_;
  Mutex mutex_;
  CondVar not_empty_;
  CondVar one_done_;
  std::deque<Call> queue_ GUARDED_BY(mutex_);  ///< the first is being carried out
  bool ending_ GUARDED_BY(mutex_) = false;

  std::thread thread_;  ///< last: it uses all the others
};

}  // namespace penstock::device
