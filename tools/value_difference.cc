#include "tools/value_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace penstock::train {
namespace {

uint64_t CountNotFinite(std::span<const float> values) {
  return static_cast<uint64_t>(std::count_if(values.begin(), values.end(),
                                             [](float value) { return !std::isfinite(value); }));
}

/// Finite values in their order, neighbours one apart.
int64_t Rank(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto magnitude = static_cast<int64_t>(bits & 0x7fffffff);
  return (bits >> 31) != 0 ? -magnitude : magnitude;
}

}  // namespace

void ValueDifference::Add(std::span<const float> a, std::span<const float> b) {
  PENSTOCK_CHECK(a.size() == b.size());
  not_finite_a_ += CountNotFinite(a);
  not_finite_b_ += CountNotFinite(b);
  if (!a.empty() && std::memcmp(a.data(), b.data(), a.size_bytes()) != 0) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
        AddDifferent(elements_ + i, a[i], b[i]);
      }
    }
  }
  elements_ += a.size();
}

void ValueDifference::AddDifferent(uint64_t at, float a, float b) {
  if (differing_++ == 0) first_ = at;
  if (!std::isfinite(a) || !std::isfinite(b)) return;
  const double distance = std::abs(static_cast<double>(a) - static_cast<double>(b));
  const double larger =
      std::max(std::abs(static_cast<double>(a)), std::abs(static_cast<double>(b)));
  if (!largest_at_ || distance > largest_) {
    largest_ = distance;
    largest_at_ = at;
  }
  if (larger > 0) largest_relative_ = std::max(largest_relative_, distance / larger);
  largest_ulps_ = std::max(largest_ulps_, static_cast<uint64_t>(std::abs(Rank(a) - Rank(b))));
}

}  // namespace penstock::train
