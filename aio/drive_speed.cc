#include "aio/drive_speed.h"

#include <algorithm>
#include <array>

#include "aio/probe.h"
#include "aio/probe_file.h"
#include "base/check.h"
#include "base/mapping.h"
#include "base/random.h"

namespace penstock::aio {
namespace {

constexpr Bytes kFileSize = 128_MiB;
constexpr Seconds kFillTime{4};
constexpr Bytes kBlock = 4_MiB;
constexpr int kBlocksInFlight = 4;
constexpr uint64_t kDataSeed = 1;
constexpr Seconds kPatience{0.3};  // for each direction

double BytesASecond(const ClosedLoop::Outcome& outcome) {
  return static_cast<double>(outcome.moved.value) / std::max(outcome.elapsed.count(), 1e-9);
}

}  // namespace

Result<DriveSpeed> MeasureDrive(const std::string& folder, const StopRequested& stop) {
  const EngineOptions options;
  const Bytes in_flight = options.block_size * static_cast<uint64_t>(options.queue_depth);
  PENSTOCK_ASSIGN(ProbeFile file, ProbeFile::Create(folder, kFileSize, in_flight));
  PENSTOCK_TRY(file.Fill(options, kFillTime, stop));
  PENSTOCK_ASSIGN(ProbeRig rig, ProbeRig::Create(options, &file));
  std::array<Probe, kDirections.size()> probes;
  for (size_t i = 0; i < kDirections.size(); ++i) {
    PENSTOCK_ASSIGN(probes[i],
                    rig.Measure(kDirections[i], {.bytes = kFileSize, .time = kPatience}, stop));
  }
  const auto& [read, write, both] = probes;
  return DriveSpeed{.read_gbps = read.gbps, .write_gbps = write.gbps, .both_gbps = both.gbps};
}

Result<double> MeasureFile(Engine& engine, const File& file, Bytes size) {
  PENSTOCK_CHECK(size.value > 0);
  const Bytes block = std::min(kBlock, size);
  PENSTOCK_ASSIGN(const Bytes end, file.Size());
  PENSTOCK_ASSIGN(const Mapping memory, Mapping::Create(block * kBlocksInFlight));
  FillRandom(kDataSeed, {memory.data(), memory.size().value});
  // Once through whole blocks, so that no two in flight meet.
  const auto once = [&](Direction direction, Bytes bytes) {
    return ClosedLoop({.engine = &engine,
                       .file = &file,
                       .begin = FileOffset{(end - size).value},
                       .size = bytes,
                       .buffers = {memory.data(), memory.size().value},
                       .block_size = block,
                       .queue_depth = kBlocksInFlight,
                       .direction = direction,
                       .limit = {.bytes = bytes, .time = kPatience}})
        .Run();
  };
  PENSTOCK_ASSIGN(const ClosedLoop::Outcome written,
                  once(Direction::kWrite, block * (size / block)));
  PENSTOCK_ASSIGN(const ClosedLoop::Outcome read, once(Direction::kRead, written.moved));
  return 2 / (1 / BytesASecond(written) + 1 / BytesASecond(read));
}

}  // namespace penstock::aio
