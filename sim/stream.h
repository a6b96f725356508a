// A queue of work that is done one piece after the other, and events by which queues wait for each
// other, like device::Stream and device::Event, in virtual time.
//
// Threads: one.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::sim {

/// Something that happens once. Copies are the same event; one that was never recorded has
/// happened.
class Event {
 public:
  /// Calls `what` when the event happens, or now if it has.
  void Then(std::function<void()> what) const;

 private:
  friend class Stream;
  struct State {
    bool happened = false;
    std::vector<std::function<void()>> waiting;
  };
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  using Done = std::function<void()>;

  /// Work that is enqueued later does not begin before `event`.
  void Wait(const Event& event);
  /// `begin` is called when everything before is done, and calls what it is given when it is done.
  void Work(std::function<void(Done)> begin);
  /// Returns an event that happens when everything enqueued so far is done.
  Event Record();

 private:
  void Next();

  std::deque<std::function<void(Done)>> work_;
  bool busy_ = false;
};

}  // namespace penstock::sim
