// The check of a drive's speed.
//
// Plain values; threads: any.
#pragma once

#include <string>

#include "aio/drive_speed.h"
#include "base/result.h"
#include "train/doctor/check.h"

namespace penstock::train {

Check SpeedCheck(const Result<aio::DriveSpeed>& speed);
/// For a drive that was not measured.
Check NoSpeedCheck(const std::string& why);

}  // namespace penstock::train
