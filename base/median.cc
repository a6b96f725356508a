#include "base/median.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace penstock {

double MedianOf(std::vector<double> values) {
  PENSTOCK_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace penstock
