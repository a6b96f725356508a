// Measures how fast a drive is, by a short write and read of a file that is about to hold states.
//
// The result is the speed of a burst: the bytes that are read were written a moment before, because
// the file has no others, and may come from the drive's own memory. It serves to compare drives;
// `penstock tune` measures a single one.
#pragma once

#include <functional>

#include "aio/aio.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::offload {

/// Returns bytes a second of a drive, from `size` bytes after the header of an allocated file,
/// which it overwrites. The header (kHeaderBytes) stays as it is. Tests use their own function.
using SpeedProbe =
    std::function<Result<double>(aio::Engine& engine, const aio::File& file, Bytes size)>;

/// The most that MeasureSpeed writes, and then reads.
inline constexpr Bytes kProbeBytes = 64_MiB;

/// Returns the harmonic mean of writing and reading, because a step reads about as much as it
/// writes, the oldest first. Each direction ends after `size` bytes, or after 0.3 seconds and the
/// blocks in flight then. Takes 16 MiB of memory while it runs. Errors: of the drive.
Result<double> MeasureSpeed(aio::Engine& engine, const aio::File& file, Bytes size);

}  // namespace penstock::offload
