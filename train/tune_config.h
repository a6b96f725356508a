// The configuration fragment that `penstock tune` writes.
#pragma once

#include <string>

#include "train/tune_plan.h"

namespace penstock::train {

/// {"aio": {...}, "penstock": {"aio": {"engine": ...}}} as `train --config A --config F` takes it.
/// The number of threads has all of its three names, so that it overrides whichever of them an
/// earlier file uses. Ends with a line break.
std::string ConfigFragment(const TunePoint& point);

}  // namespace penstock::train
