#include "numerics/history.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/median.h"

namespace penstock::train {

void History::Add(double value) {
  PENSTOCK_CHECK(std::isfinite(value));
  values_.push_back(value);
  if (values_.size() > capacity_) values_.pop_front();
}

double History::Median() const { return MedianOf({values_.begin(), values_.end()}); }

double History::MedianDeviation() const {
  const double median = Median();
  std::vector<double> distances;
  for (const double value : values_) distances.push_back(std::abs(value - median));
  return MedianOf(std::move(distances));
}

double History::LargestBut(size_t left_out) const {
  PENSTOCK_CHECK(!values_.empty());
  const size_t count = left_out < size() ? size() - left_out : size();
  return *std::max_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count));
}

double History::PartMedian(size_t part, size_t parts) const {
  PENSTOCK_CHECK(full() && capacity_ % parts == 0 && part < parts);
  const auto length = static_cast<std::ptrdiff_t>(capacity_ / parts);
  const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(part) * length;
  return MedianOf({begin, begin + length});
}

}  // namespace penstock::train
