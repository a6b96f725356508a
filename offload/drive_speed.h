// How fast a drive is: a short timed write and read of a file that is about to hold states.
//
// It is the speed of a burst: what is read was written a moment before, as nothing else is there to
// be read, and may come from the drive's own memory. It serves to compare drives, and `penstock
// tune` to know one.
#pragma once

#include <functional>

#include "aio/aio.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::offload {

/// Bytes a second of a drive, from `size` bytes behind the header of an allocated file, which it
/// overwrites. The header (kHeaderBytes) stays as it is. Tests put in their own.
using SpeedProbe =
    std::function<Result<double>(aio::Engine& engine, const aio::File& file, Bytes size)>;

/// The most that MeasureSpeed writes, and then reads.
inline constexpr Bytes kProbeBytes = 64_MiB;

/// The harmonic mean of writing and reading, as a step reads about what it writes, the oldest
/// first. Each direction ends after `size` bytes or 0.3 seconds and what was in flight then; takes
/// 16 MiB of memory while it runs. Errors: of the drive.
Result<double> MeasureSpeed(aio::Engine& engine, const aio::File& file, Bytes size);

}  // namespace penstock::offload
