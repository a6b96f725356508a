// Measures how fast one thread of this machine updates states, sums gradients and copies memory.
//
// Takes some tens of milliseconds and 64 MiB. Threads: the main thread, while nothing else works.
#pragma once

#include "base/result.h"
#include "config/config.h"
#include "sim/clock.h"

namespace penstock::train {

/// Seconds of one thread.
struct HostSpeed {
  sim::Seconds update_element = 0;  ///< by the configuration's rule, with its states
  sim::Seconds norm_element = 0;    ///< block sums of a gradient
  sim::Seconds copy_byte = 0;
};

/// Errors: kOutOfMemory.
Result<HostSpeed> MeasureHost(const config::Config& config);

}  // namespace penstock::train
