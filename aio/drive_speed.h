// How fast a drive is, in a few seconds. `penstock tune` takes minutes for it, and finds the best
// settings.
//
// Threads: one at a time; nothing else of weight should use the drive.
#pragma once

#include <functional>
#include <string>

#include "aio/aio.h"
#include "aio/closed_loop.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

/// GB/s (10^9 bytes) of a burst.
struct DriveSpeed {
  double read_gbps = 0;
  double write_gbps = 0;
  double both_gbps = 0;  ///< reads and writes in turn, together
};

/// So much has to be free for MeasureDrive.
inline constexpr Bytes kSpaceToMeasure = 256_MiB;

/// Measures with the engine that "auto" takes, with a file in `folder` that has no name. Errors: of
/// the drive; kCancelled if `stop` said so; kUnavailable if the drive did not take the file in
/// time.
Result<DriveSpeed> MeasureDrive(const std::string& folder, const StopRequested& stop);

/// Returns bytes a second of the drive of a file, whose last `size` bytes it overwrites. Tests use
/// their own function.
using SpeedProbe = std::function<Result<double>(Engine& engine, const File& file, Bytes size)>;

/// The most that MeasureFile is given.
inline constexpr Bytes kProbeBytes = 64_MiB;

/// Measures with a file that is about to hold states, and its engine. Returns the harmonic mean of
/// writing and reading, because a step reads about as much as it writes, the oldest first. Each
/// direction ends after `size` bytes, or after 0.3 seconds and the blocks in flight then. Takes
/// 16 MiB of memory while it runs. It is the speed of a burst: the bytes that are read were written
/// a moment before, because the file has no others, and may come from the drive's own memory. So it
/// serves to compare drives. Errors: of the drive.
Result<double> MeasureFile(Engine& engine, const File& file, Bytes size);

}  // namespace penstock::aio
