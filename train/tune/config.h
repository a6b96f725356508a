// The configuration fragment that `penstock tune` writes.
#pragma once

#include <string>

#include "train/tune/result.h"

namespace penstock::train {

/// {"aio": {...}, "penstock": {"drive": {...}, "aio": {...}}} as `train --config A --config F`
/// takes it. It has every key that decides how a drive is used, so that F sets what was measured
/// regardless of A; the number of threads under all of its three names; and the measured speed, for
/// plans. Ends with a line break.
std::string ConfigFragment(const PointSummary& chosen);

}  // namespace penstock::train
