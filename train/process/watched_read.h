// Has a long read say how far it is, and end when a signal asks for it.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "train/process/interrupt.h"

namespace penstock::train {

/// Returns what a read calls with the bytes that it has read and all that it will, from one thread
/// at a time. `what` begins the line on a read that takes long. Once a signal was received, it
/// returns kCancelled with `interrupted`. The interrupt outlives what is returned.
std::function<Status(Bytes done, Bytes all)> WatchedRead(const std::string& what,
                                                         const Interrupt& interrupt,
                                                         std::string interrupted);

}  // namespace penstock::train
