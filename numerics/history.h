// The last values of a series, with their median and spread.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace penstock::train {

class History {
 public:
  /// Keeps the last `capacity` values.
  explicit History(size_t capacity) : capacity_(capacity) {}

  /// Precondition: `value` is finite.
  void Add(double value);
  size_t size() const { return values_.size(); }
  bool full() const { return size() == capacity_; }

  /// Preconditions of all: there is a value.
  double Median() const;
  /// The median distance from the median.
  double MedianDeviation() const;
  /// The largest of all values but the last `left_out`; of fewer values, of all.
  double LargestBut(size_t left_out) const;
  /// The median of part `part` of `parts` equally long ones, the oldest first. Precondition: full,
  /// and `parts` divides the capacity.
  double PartMedian(size_t part, size_t parts) const;

 private:
  size_t capacity_;
  std::deque<double> values_;
};

}  // namespace penstock::train
