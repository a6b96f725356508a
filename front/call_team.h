// Executes calls in order on several threads, each of which does its share of every call.
//
// A call has an event of the work before it. A thread does its share of a call once the event is
// reached and its own share of the previous call is done; it waits for no other thread. The
// continuation of a call runs when all its shares are done, so in the order of the calls as well.
//
// Threads: one at a time adds calls; calls may not add any. The team's threads start with the first
// call; if the system gives none, the adding thread does everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/device.h"

namespace penstock::front {

class CallTeam {
 public:
  /// A thread that adds calls waits if it is this many ahead.
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  /// Share `number` of `of`, which is the same in all calls.
  struct Share {
    uint64_t number = 0;
    uint64_t of = 1;
  };
  using Work = std::function<void(const Share& share)>;

  /// `name`: the threads' name.
  CallTeam(std::string name, int threads) : name_(std::move(name)), wanted_(threads) {}
  /// Executes the remaining calls.
  ~CallTeam();
  CallTeam(const CallTeam&) = delete;
  CallTeam& operator=(const CallTeam&) = delete;

  /// Neither function throws.
  void Add(device::Event before, Work work, std::function<void()> done) EXCLUDES(mutex_);
  /// Blocks until all calls are done.
  void Drain() EXCLUDES(mutex_);

 private:
  struct Call {
    device::Event before;
    Work work;
    std::function<void()> done;
    uint64_t left = 0;     ///< shares that are not done
    bool awaited = false;  ///< a thread waits for the event
    bool reached = false;
  };

  void Start();
  void Run(uint64_t number) EXCLUDES(mutex_);
  void Await(Call& call) REQUIRES(mutex_);

  const std::string name_;
  const int wanted_;
  bool started_ = false;
  uint64_t size_ = 0;  ///< number of threads; fixed by the first call
  Mutex mutex_;
  CondVar changed_;  ///< there is another call, or an event is reached
  CondVar one_done_;
  std::deque<Call> calls_ GUARDED_BY(mutex_);  ///< calls that are not done
  uint64_t first_ GUARDED_BY(mutex_) = 0;      ///< number of the first of calls_
  bool ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  ///< last: they use all the others
};

}  // namespace penstock::front
