// The median of some values.
#pragma once

#include <vector>

namespace penstock {

/// Returns the median: the mean of both middle values of an even number. Precondition: there is a
/// value, and none is NaN.
double MedianOf(std::vector<double> values);

}  // namespace penstock
