// Waiting in tests for what another thread does.
#pragma once

#include <chrono>
#include <thread>

namespace penstock {

/// Whether `condition()` becomes true within a minute; asks again and again. Without a deadline a
/// test of what never happens would hang, and say nothing.
template <typename Condition>
[[nodiscard]] bool BecomesTrue(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace penstock
