// Which bytes of a buffer the next data goes into, and whose copy they wait for: a ring. What goes
// in leaves in the same order.
//
// A policy as a value: `Event` is the end of a copy, of a stream (zero/engine/offload_engine.h) or
// in virtual time (sim/step.h). Threads: one.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace penstock::zero {

template <typename Event>
class StagingRing {
 public:
  struct Room {
    Bytes begin;
    std::optional<Event> free;  ///< the room may be written after it; none: at once
  };

  explicit StagingRing(Bytes size = {}) : size_(size) {}
  Bytes size() const { return size_; }

  /// Returns the next room of so many bytes. Precondition: there are so many.
  Room Reserve(Bytes size) {
    PENSTOCK_CHECK(size <= size_);
    if (size_ - next_ < size) next_ = {};
    Room room{.begin = next_, .free = {}};
    // Copies are in order: with the last one in the way, all before it have ended.
    for (size_t i = copies_.size(); i-- > 0;) {
      if (copies_[i].end <= next_ || copies_[i].begin >= next_ + size) continue;
      room.free = copies_[i].ended;
      copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      break;
    }
    return room;
  }
  /// Says that the room that was reserved last is copied until `ended`.
  void Take(Bytes size, Event ended) {
    copies_.push_back({.begin = next_, .end = next_ + size, .ended = std::move(ended)});
    next_ += size;
  }

 private:
  struct Copy {
    Bytes begin;
    Bytes end;
    Event ended;
  };
  Bytes size_;
  Bytes next_;
  std::deque<Copy> copies_;  ///< copies that may not have ended, oldest first
};

}  // namespace penstock::zero
