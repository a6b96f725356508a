#include "train/doctor/speed_check.h"

#include <fmt/format.h>

namespace penstock::train {
namespace {

constexpr double kSlowGbps = 0.5;
constexpr double kGoodGbps = 3;

}  // namespace

Check SpeedCheck(const Result<aio::DriveSpeed>& speed) {
  if (!speed.ok()) {
    return WarnCheck("speed", "not measured: " + speed.error().message,
                     "penstock tune measures it");
  }
  const std::string found =
      fmt::format("{:.2f} GB/s written, {:.2f} GB/s read, {:.2f} GB/s with both in turn",
                  speed->write_gbps, speed->read_gbps, speed->both_gbps);
  if (speed->write_gbps < kSlowGbps) {
    return WarnCheck(
        "speed", found,
        "this may be no NVMe drive, or another program uses it; penstock tune measures "
        "it longer");
  }
  return OkCheck("speed", speed->write_gbps >= kGoodGbps ? found + ": good" : found);
}

Check NoSpeedCheck(const std::string& why) { return OkCheck("speed", "not measured: " + why); }

}  // namespace penstock::train
