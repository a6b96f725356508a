// Measures how fast one thread of this machine updates states, sums gradients and copies memory.
//
// Takes some tens of milliseconds. Threads: the main thread, while nothing else works.
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "config/config.h"
#include "sim/clock.h"

namespace penstock::train {

/// Seconds of one thread.
struct HostSpeed {
  sim::Seconds update_element = 0;  ///< by the configuration's rule, with its states
  sim::Seconds norm_element = 0;    ///< block sums of a gradient
  sim::Seconds copy_byte = 0;
};

/// What a measurement takes that no cache holds.
inline constexpr Bytes kMeasuringMemory = 64_MiB;

/// Takes up to kMeasuringMemory, and no more than `most` unless that is less than a chunk of an
/// update (half a MiB). Errors: kOutOfMemory.
Result<HostSpeed> MeasureHost(const config::Config& config, Bytes most = kMeasuringMemory);

}  // namespace penstock::train
