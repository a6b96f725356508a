#include "train/tune/plan.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace penstock::train {
namespace {

using std::chrono::seconds;

constexpr uint64_t kOrderSeed = 1;

std::vector<Bytes> PowersOfTwo(Bytes first, Bytes last, uint64_t factor) {
  std::vector<Bytes> sizes;
  for (Bytes size = first; size <= last; size = size * factor) sizes.push_back(size);
  return sizes;
}

std::vector<int> PowersOfTwo(int first, int last, int factor) {
  std::vector<int> numbers;
  for (int number = first; number <= last; number *= factor) numbers.push_back(number);
  return numbers;
}

}  // namespace

TuneScale FullScale() {
  return {.file_size = 4_GiB,
          .block_sizes = PowersOfTwo(64_KiB, 16_MiB, 2),
          .queue_depths = PowersOfTwo(1, 128, 2),
          .rounds = 5,
          .probe = {.bytes = 128_MiB, .time = Seconds(0.25)},
          .grid_end = seconds(240),
          .engines_end = seconds(285)};
}

TuneScale QuickScale() {
  return {.file_size = 1_GiB,
          .block_sizes = PowersOfTwo(64_KiB, 16_MiB, 4),
          .queue_depths = PowersOfTwo(1, 64, 4),
          .rounds = 5,
          .probe = {.bytes = 64_MiB, .time = Seconds(0.09)},
          .grid_end = seconds(18),
          .engines_end = seconds(26)};
}

TunePoint MakePoint(aio::EngineKind engine, Bytes block_size, int queue_depth) {
  const bool threads = engine == aio::EngineKind::kThreads;
  return {.engine = engine,
          .block_size = block_size,
          .queue_depth = queue_depth,
          .thread_count = threads ? std::min(queue_depth, aio::kMaxThreadCount) : 1};
}

Result<TunePlan> MakePlan(TuneScale scale, std::optional<Bytes> file_size, aio::EngineKind engine) {
  scale.file_size = AlignUp(file_size.value_or(scale.file_size), 1_MiB);
  if (scale.file_size < 1_MiB || (file_size && *file_size < 1_MiB)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--size {}: the file to measure with must have 1MiB at least; a real drive "
                     "needs gigabytes",
                     file_size ? file_size->value : 0);
  }
  scale.probe.bytes = std::min(scale.probe.bytes, scale.file_size);
  TunePlan plan{.scale = std::move(scale)};
  plan.in_flight_limit =
      Bytes{std::min(plan.scale.probe.bytes.value / 2, plan.scale.file_size.value / 4)};
  for (const Bytes block_size : plan.scale.block_sizes) {
    for (const int queue_depth : plan.scale.queue_depths) {
      const TunePoint point = MakePoint(engine, block_size, queue_depth);
      (point.in_flight() <= plan.in_flight_limit ? plan.grid : plan.left_out).push_back(point);
    }
  }
  return plan;
}

std::vector<TunePoint> EnginePoints(std::span<const aio::EngineKind> engines, Bytes block_size,
                                    int queue_depth) {
  std::vector<TunePoint> points;
  for (const aio::EngineKind engine : engines) {
    const int most = MakePoint(engine, block_size, queue_depth).thread_count;
    for (const int thread_count : PowersOfTwo(1, most, 2)) {
      points.push_back({.engine = engine,
                        .block_size = block_size,
                        .queue_depth = queue_depth,
                        .thread_count = thread_count});
    }
  }
  return points;
}

std::vector<size_t> RoundOrder(size_t count, int round) {
  std::vector<size_t> order;
  if (count == 0) return order;
  const Permutation shuffle(kOrderSeed, static_cast<uint64_t>(round / 2), count);
  for (size_t i = 0; i < count; ++i) order.push_back(shuffle(i));
  if (round % 2 == 1) std::ranges::reverse(order);
  return order;
}

Bytes MostWritten(const TunePlan& plan, size_t engine_points) {
  const uint64_t turns =
      (plan.grid.size() + engine_points) * static_cast<uint64_t>(plan.scale.rounds);
  // A probe of writing moves a probe's bytes, one of both directions half of them as writes.
  const Bytes both{plan.scale.probe.bytes.value / 2};
  return plan.scale.file_size + (plan.scale.probe.bytes + both) * turns;
}

std::string BlockText(Bytes block_size) {
  if (block_size < 1_MiB) return fmt::format("{} KiB", block_size / 1_KiB);
  return fmt::format("{} MiB", block_size / 1_MiB);
}

}  // namespace penstock::train
