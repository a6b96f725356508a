// Finds a rank for which the others wait, step after step.
//
// Each rank tells for how long it has waited in operations between ranks. In an operation, whoever
// comes last waits least. So over a window of steps, the rank that has waited least is the slow
// one, if all others have waited for much longer: each by more than a share of the time of the
// window. It is named once.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::train {

class SlowRank {
 public:
  /// Steps of a window.
  static constexpr uint64_t kSteps = 20;
  /// The share of its time that all other ranks have waited longer.
  static constexpr double kShare = 0.2;

  struct Finding {
    uint32_t rank;
    double share;  ///< of the time of the window that the others have waited longer, at least
  };
  /// Takes what each rank has waited since it began, by rank, and the time, both in seconds, at the
  /// end of a step. Returns what it finds, the first time.
  std::optional<Finding> Step(const std::vector<double>& waited, double now);

 private:
  struct Reading {
    std::vector<double> waited;
    double at = 0;
  };
  std::optional<Reading> begin_;  ///< of the window
  uint64_t steps_ = 0;            ///< in it
  bool named_ = false;
};

}  // namespace penstock::train
