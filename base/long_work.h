// Says what takes long, and how far it is: nothing in the first seconds, then a line now and then.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/notify.h"

namespace penstock {

class LongWork {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kFirstLine{5};
  static constexpr std::chrono::seconds kNextLine{60};

  /// `what` begins the line: "verifying the commit in FILE". `say` is null if nothing is said.
  LongWork(
      std::string what, Notify say,
      std::function<Clock::time_point()> now = [] { return Clock::now(); });

  /// `done` of `all` is done, in any unit.
  void Note(double done, double all);

 private:
  const std::string what_;
  const Notify say_;
  const std::function<Clock::time_point()> now_;
  const Clock::time_point start_;
  Clock::time_point due_;
};

}  // namespace penstock
