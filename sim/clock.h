// Virtual time. Events happen in the order of their times; events of the same time happen in the
// order in which they were requested. So a simulation gives the same result whenever it is run.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace penstock::sim {

/// Time since the start of the simulation.
using Seconds = double;

class Clock {
 public:
  Seconds now() const { return now_; }
  /// Calls `what` after `delay` >= 0.
  void After(Seconds delay, std::function<void()> what);
  /// Lets the next event happen. Returns false if there is none.
  bool Step();

 private:
  struct Event {
    Seconds time = 0;
    uint64_t number = 0;
    std::function<void()> what;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  Seconds now_ = 0;
  uint64_t asked_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace penstock::sim
