// How the parts of cuda_bench measure and print.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "device/device.h"

namespace penstock::bench {

inline constexpr int kRepeats = 5;

/// Seconds that `work` takes on the stream: the fastest of some runs, after one that warms up.
inline Result<double> Time(device::Stream& stream, const std::function<void()>& work) {
  double best = 0;
  for (int run = 0; run <= kRepeats; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    PENSTOCK_TRY(stream.Synchronize());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (run > 0 && (best == 0 || took.count() < best)) best = took.count();
  }
  return best;
}

inline void Print(const std::string& what, double value, const char* unit, double ceiling) {
  fmt::print("{:<54} {:>9.1f} {:<8} {:>5.2f} of the ceiling\n", what, value, unit, value / ceiling);
}

}  // namespace penstock::bench
