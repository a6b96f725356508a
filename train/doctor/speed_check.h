// A quick measurement of a drive: seconds, where `penstock tune` takes minutes.
//
// Threads: one at a time; nothing else of weight should use the drive.
#pragma once

#include <optional>
#include <string>

#include "aio/closed_loop.h"
#include "base/result.h"
#include "base/units.h"
#include "train/doctor/check.h"

namespace penstock::train {

/// GB/s (10^9 bytes) of a burst.
struct DriveSpeed {
  double read_gbps = 0;
  double write_gbps = 0;
  double both_gbps = 0;  ///< reads and writes in turn, together
};

/// So much has to be free for a measurement.
inline constexpr Bytes kSpaceToMeasure = 256_MiB;

/// Measures with the engine that "auto" takes, with a file in `folder` that has no name. Errors: of
/// the drive; kCancelled if `stop` said so; kUnavailable if the drive did not take the file in
/// time.
Result<DriveSpeed> MeasureDrive(const std::string& folder, const aio::StopRequested& stop);

Check SpeedCheck(const Result<DriveSpeed>& speed);
/// For a drive that was not measured.
Check NoSpeedCheck(const std::string& why);

}  // namespace penstock::train
