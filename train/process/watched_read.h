// Shows the progress of a long read, and ends it on a signal.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "train/process/interrupt.h"

namespace penstock::train {

/// Returns a function that a read calls with its bytes so far and in total, from one thread at a
/// time. `what` begins the progress line of a long read. Once a signal was received, the function
/// returns kCancelled with `interrupted`. The interrupt outlives it.
std::function<Status(Bytes done, Bytes all)> WatchedRead(const std::string& what,
                                                         const Interrupt& interrupt,
                                                         std::string interrupted);

}  // namespace penstock::train
