// The configuration fragment that `penstock tune` writes.
#pragma once

#include <string>

#include "train/tune/result.h"

namespace penstock::train {

/// {"aio": {...}, "penstock": {"drive": {...}, "aio": {...}}} as `train --config A --config F`
/// takes it. It has every key that decides how a drive is used, so that F means what was measured
/// whatever A says; the number of threads with all of its three names; and the speed that was
/// measured, for plans. Ends with a line break.
std::string ConfigFragment(const PointSummary& chosen);

}  // namespace penstock::train
