// Finds a rank for which the others wait, step after step.
//
// Each rank reports how long it has waited in operations between ranks. The last rank to join an
// operation waits least. So over a window of steps, the rank that has waited least is the slow one,
// if each other rank has waited longer by more than a share of the window's time. It is named once.
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
  /// The share of the window's time by which all other ranks must have waited longer.
  static constexpr double kShare = 0.2;

  struct Finding {
    uint32_t rank;
    double share;  ///< min share of the window's time by which the others have waited longer
  };
  /// Takes each rank's total waiting time, by rank, and the current time, both in seconds, at the
  /// end of a step. Returns a finding, once.
  std::optional<Finding> Step(const std::vector<double>& waited, double now);

 private:
  struct Reading {
    std::vector<double> waited;
    double at = 0;
  };
  std::optional<Reading> begin_;  ///< begin of the window
  uint64_t steps_ = 0;            ///< steps in it
  bool named_ = false;
};

}  // namespace penstock::train
