// The processor's cores, shared by all concurrent work.
//
// Each piece of work has a number of threads. If there are fewer cores than threads, every thread
// gets the same share of them. A fair scheduler does the same over times much longer than its
// slices. The model does not include the time for which a team of threads waits for its slowest
// member.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "sim/clock.h"

namespace penstock::sim {

class Cores {
 public:
  /// `clock` outlives the cores.
  Cores(Clock& clock, double cores) : clock_(clock), cores_(cores) {}
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;

  /// Begins work that would keep `threads` threads busy for `time` on idle cores, and calls `done`
  /// at its end.
  void Work(Seconds time, double threads, std::function<void()> done);

 private:
  struct Job {
    Seconds left = 0;
    double threads = 1;
    std::function<void()> done;
  };
  double Speed() const;
  void Pass();
  void PlanNext();
  void Finish();

  Clock& clock_;
  const double cores_;
  std::list<Job> jobs_;
  double threads_ = 0;  ///< threads of all jobs
  Seconds passed_until_ = 0;
  uint64_t plan_ = 0;  ///< plans before this one are void
};

}  // namespace penstock::sim
