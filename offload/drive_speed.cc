#include "offload/drive_speed.h"

#include <algorithm>

#include "aio/closed_loop.h"
#include "base/check.h"
#include "base/mapping.h"
#include "base/random.h"
#include "offload/state_format.h"

namespace penstock::offload {
namespace {

constexpr Bytes kBlock = 4_MiB;
constexpr int kBlocksInFlight = 4;
constexpr uint64_t kDataSeed = 1;
constexpr aio::Seconds kPatience{0.3};

double BytesASecond(const aio::ClosedLoop::Outcome& outcome) {
  return static_cast<double>(outcome.moved.value) / std::max(outcome.elapsed.count(), 1e-9);
}

}  // namespace

Result<double> MeasureSpeed(aio::Engine& engine, const aio::File& file, Bytes size) {
  PENSTOCK_CHECK(size.value > 0);
  const Bytes block = std::min(kBlock, size);
  PENSTOCK_ASSIGN(const Mapping memory, Mapping::Create(block * kBlocksInFlight));
  FillRandom(kDataSeed, {memory.data(), memory.size().value});
  // Once through whole blocks, so that no two in flight meet.
  const auto once = [&](aio::Direction direction, Bytes bytes) {
    return aio::ClosedLoop({.engine = &engine,
                            .file = &file,
                            .begin = FileOffset{kHeaderBytes.value},
                            .size = bytes,
                            .buffers = {memory.data(), memory.size().value},
                            .block_size = block,
                            .queue_depth = kBlocksInFlight,
                            .direction = direction,
                            .limit = {.bytes = bytes, .time = kPatience}})
        .Run();
  };
  PENSTOCK_ASSIGN(const aio::ClosedLoop::Outcome written,
                  once(aio::Direction::kWrite, block * (size / block)));
  PENSTOCK_ASSIGN(const aio::ClosedLoop::Outcome read, once(aio::Direction::kRead, written.moved));
  return 2 / (1 / BytesASecond(written) + 1 / BytesASecond(read));
}

}  // namespace penstock::offload
