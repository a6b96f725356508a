#include "train/doctor/speed_check.h"

#include <fmt/format.h>

#include <memory>

#include "aio/aio.h"
#include "aio/probe.h"
#include "aio/probe_file.h"

namespace penstock::train {
namespace {

constexpr Bytes kFileSize = 128_MiB;
constexpr aio::Seconds kFillTime{4};
constexpr aio::LoopLimit kProbe = {.bytes = kFileSize, .time = aio::Seconds{0.3}};
constexpr double kSlowGbps = 0.5;
constexpr double kGoodGbps = 3;

}  // namespace

Result<DriveSpeed> MeasureDrive(const std::string& folder, const aio::StopRequested& stop) {
  const aio::EngineOptions options;
  const Bytes in_flight = options.block_size * static_cast<uint64_t>(options.queue_depth);
  PENSTOCK_ASSIGN(aio::ProbeFile file, aio::ProbeFile::Create(folder, kFileSize, in_flight));
  {
    PENSTOCK_ASSIGN(const std::unique_ptr<aio::Engine> engine, aio::CreateEngine(options));
    PENSTOCK_TRY(file.Fill(*engine, kFillTime, stop));
  }
  PENSTOCK_ASSIGN(aio::ProbeRig rig, aio::ProbeRig::Create(options, &file));
  PENSTOCK_ASSIGN(const aio::Probe write, rig.Measure(aio::Direction::kWrite, kProbe, stop));
  PENSTOCK_ASSIGN(const aio::Probe read, rig.Measure(aio::Direction::kRead, kProbe, stop));
  PENSTOCK_ASSIGN(const aio::Probe both, rig.Measure(aio::Direction::kBoth, kProbe, stop));
  return DriveSpeed{.read_gbps = read.gbps, .write_gbps = write.gbps, .both_gbps = both.gbps};
}

Check SpeedCheck(const Result<DriveSpeed>& speed) {
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
