#include "sim/clock.h"

#include <utility>

#include "base/check.h"

namespace penstock::sim {

void Clock::After(Seconds delay, std::function<void()> what) {
  PENSTOCK_CHECK(delay >= 0);
  events_.push({now_ + delay, asked_++, std::move(what)});
}

bool Clock::Step() {
  if (events_.empty()) return false;
  // The queue gives out its top as a constant; it is gone before it can be seen again.
  std::function<void()> what = std::move(const_cast<Event&>(events_.top()).what);
  now_ = events_.top().time;
  events_.pop();
  what();
  return true;
}

}  // namespace penstock::sim
