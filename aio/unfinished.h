// Keeps which of the submitted requests are unfinished.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>

namespace penstock::aio {

/// Requests have sequence numbers from 0 on, in the order in which they are added, and finish in
/// any order.
class Unfinished {
 public:
  uint64_t Add() {
    finished_.push_back(false);
    return end() - 1;
  }

  /// Precondition: it was added, and is unfinished.
  void Finish(uint64_t sequence) {
    finished_[sequence - oldest_] = true;
    while (!finished_.empty() && finished_.front()) {
      finished_.pop_front();
      ++oldest_;
    }
  }

  /// All before it are finished.
  uint64_t oldest() const { return oldest_; }
  /// The number of the next request.
  uint64_t end() const { return oldest_ + finished_.size(); }

 private:
  uint64_t oldest_ = 0;
  std::deque<bool> finished_;  ///< begins with the oldest unfinished one
};

}  // namespace penstock::aio
