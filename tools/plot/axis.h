// The axis of a chart: which values it spans, where a value lies on it, and which values are
// written beside it.
//
// Plain values. Threads: any.
#pragma once

#include <string>
#include <vector>

namespace penstock::train {

enum class AxisScale {
  kLinear,
  kLog10,  ///< positive values alone
  kLog2,   ///< likewise; ticks are powers of two
};

/// A value that is written beside an axis.
struct Tick {
  double value = 0;
  std::string text;
};

class Axis {
 public:
  /// Spans `least` to `most` and a little more. A span without extent, or of what is not finite or
  /// not positive on a logarithmic scale, becomes one around it.
  Axis(AxisScale scale, double least, double most);

  /// Whether the axis has a place for a value: it is finite, and positive on a logarithmic scale.
  bool Has(double value) const;
  /// Returns 0 for the lower end, 1 for the upper, and in between; beyond them outside of 0 to 1.
  /// Precondition: Has(value).
  double Place(double value) const;
  /// Returns about `count` round values within the axis, in order.
  std::vector<Tick> Ticks(int count) const;

 private:
  /// The value as the axis counts: itself, or its logarithm.
  double Measure(double value) const;
  std::vector<Tick> LinearTicks(int count) const;
  std::vector<Tick> PowerTicks(int count) const;

  AxisScale scale_;
  double low_ = 0;  ///< as Measure gives them
  double high_ = 1;
};

}  // namespace penstock::train
