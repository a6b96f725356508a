// Measures by how much two tensors differ, chunk by chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace penstock::train {

/// Elements differ if their bits do: 0 and -0 differ, a NaN and the same NaN do not. The sizes of
/// differences count elements that are finite on both sides. Indices count in the tensor's flat
/// order. Threads: one.
class ValueDifference {
 public:
  /// Adds the next elements of A and B. Precondition: as many of each.
  void Add(std::span<const float> a, std::span<const float> b);

  uint64_t elements() const { return elements_; }
  uint64_t differing() const { return differing_; }
  uint64_t first() const { return first_; }  ///< index of the first difference; 0 if there is none
  uint64_t not_finite_a() const { return not_finite_a_; }
  uint64_t not_finite_b() const { return not_finite_b_; }
  /// The element with the largest |a - b| (the first of equals); none if no finite elements differ.
  std::optional<uint64_t> largest_at() const { return largest_at_; }
  double largest() const { return largest_; }
  /// The largest |a - b| / max(|a|, |b|).
  double largest_relative() const { return largest_relative_; }
  /// The most fp32 values from a to b; 0 and -0 count as the same one.
  uint64_t largest_ulps() const { return largest_ulps_; }

 private:
  void AddDifferent(uint64_t at, float a, float b);

  uint64_t elements_ = 0;
  uint64_t differing_ = 0;
  uint64_t first_ = 0;
  uint64_t not_finite_a_ = 0;
  uint64_t not_finite_b_ = 0;
  std::optional<uint64_t> largest_at_;
  double largest_ = 0;
  double largest_relative_ = 0;
  uint64_t largest_ulps_ = 0;
};

}  // namespace penstock::train
