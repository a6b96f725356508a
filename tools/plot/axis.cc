#include "tools/plot/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

/// Of the span, so that lines keep off the frame.
constexpr double kAir = 0.04;

/// 1, 2 or 5 times a power of ten, at least `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= least) return step * power;
  }
  return 10 * power;
}

}  // namespace

Axis::Axis(AxisScale scale, double least, double most) : scale_(scale) {
  if (!Has(least) || !Has(most) || least > most) {
    least = most = scale == AxisScale::kLinear ? 0 : 1;
  }
  low_ = Measure(least);
  high_ = Measure(most);
  const double middle = (low_ + high_) / 2;
  // Of a constant, the line runs through the middle.
  const double shortest =
      scale == AxisScale::kLinear ? std::max(1e-6, 0.02 * std::abs(middle)) : 0.5;
  if (high_ - low_ < shortest) {
    low_ = middle - shortest;
    high_ = middle + shortest;
  }
  const double air = kAir * (high_ - low_);
  low_ -= air;
  high_ += air;
}

bool Axis::Has(double value) const {
  return std::isfinite(value) && (scale_ == AxisScale::kLinear || value > 0);
}

double Axis::Measure(double value) const {
  if (scale_ == AxisScale::kLinear) return value;
  return scale_ == AxisScale::kLog2 ? std::log2(value) : std::log10(value);
}

double Axis::Place(double value) const { return (Measure(value) - low_) / (high_ - low_); }

std::vector<Tick> Axis::LinearTicks(int count) const {
  const double from = scale_ == AxisScale::kLinear ? low_ : std::pow(10, low_);
  const double to = scale_ == AxisScale::kLinear ? high_ : std::pow(10, high_);
  const double step = RoundStep((to - from) / count);
  std::vector<Tick> ticks;
  for (double i = std::ceil(from / step) + 0.0; i * step <= to; ++i) {
    const double value = i * step;
    if (Has(value) || value == 0) ticks.push_back({value, fmt::format("{:.6g}", value)});
  }
  return ticks;
}

std::vector<Tick> Axis::PowerTicks(int count) const {
  const double every = std::max(1.0, std::round((high_ - low_) / count));
  // Adding 0 turns -0 into 0.
  const double first = std::ceil(low_ / every) * every + 0.0;
  const auto last = static_cast<int>(std::floor((high_ - first) / every));
  std::vector<Tick> ticks;
  for (int i = 0; i <= last; ++i) {
    const double power = first + i * every;
    if (scale_ == AxisScale::kLog2) {
      ticks.push_back({std::exp2(power), fmt::format("2^{:.0f}", power)});
    } else {
      ticks.push_back({std::pow(10, power), fmt::format("{:g}", std::pow(10, power))});
    }
  }
  return ticks;
}

std::vector<Tick> Axis::Ticks(int count) const {
  if (scale_ == AxisScale::kLinear) return LinearTicks(count);
  // Within a decade or two there are too few powers of ten to read the line by.
  if (scale_ == AxisScale::kLog10 && high_ - low_ < 1.5) return LinearTicks(count);
  return PowerTicks(count);
}

}  // namespace penstock::train
