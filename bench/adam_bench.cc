// How close is the fused update to the machine's memory bandwidth?
//
// Each iteration updates a tile that no cache holds, and then reads and writes back as many bytes
// of another buffer with one addition a word: the least that any update of that size could do. Both
// run on the same threads, one after the other, so that they meet the same machine. The time of an
// iteration is that of the update. Counters, from the best iteration of each, as in STREAM:
//   update_bytes_per_second   bytes read and written by the update
//   ceiling_bytes_per_second  the same for the read-modify-write stream
//   fraction                  the first over the second
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/adam.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kElements = 24 << 20;

/// 12 of master and moments read and written, 2 of a bf16 gradient read; alike in both layouts.
constexpr uint64_t kBytesPerElement = 26;

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Calls work(first, count) on `threads` threads, each with its share of [0, total).
void InParallel(uint64_t threads, uint64_t total,
                const std::function<void(uint64_t, uint64_t)>& work) {
  const uint64_t share = total / threads / kChunkElements * kChunkElements;
  std::vector<std::jthread> team;
  for (uint64_t i = 0; i < threads; ++i) {
    team.emplace_back(work, i * share, i + 1 == threads ? total - i * share : share);
  }
}

struct States {
  explicit States(bool split)
      : hi(split ? kElements : 0),
        lo(hi.size()),
        whole(split ? 0 : kElements, 0.5f),
        exp_avg(kElements, 1e-3f),
        exp_avg_sq(kElements, 1e-6f),
        gradient(kElements, BFloat16{0x3a83}) {}

  AdamTile tile() {
    return {.weight_hi = hi,
            .weight_lo = lo,
            .weight = whole,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .gradient = gradient.data(),
            .gradient_dtype = DType::kBFloat16};
  }

  std::vector<BFloat16> hi;
  std::vector<int16_t> lo;
  std::vector<float> whole;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  std::vector<BFloat16> gradient;
};

void UpdateInChunks(const AdamScalars& scalars, const AdamTile& tile, uint64_t first,
                    uint64_t count) {
  for (uint64_t done = 0; done < count; done += kChunkElements) {
    AdamUpdate(scalars, Part(tile, first + done, std::min(kChunkElements, count - done)));
  }
}

void Update(benchmark::State& state, bool split) {
  const auto threads = static_cast<uint64_t>(state.range(0));
  States states(split);
  const AdamTile tile = states.tile();
  const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.01}, 1e-3, 10, 1);
  const uint64_t bytes = kElements * kBytesPerElement;
  std::vector<uint64_t> stream(bytes / 2 / sizeof(uint64_t));  // each byte is read and written

  double update_seconds = std::numeric_limits<double>::infinity();
  double stream_seconds = update_seconds;
  for (auto _ : state) {
    const double seconds = Seconds([&] {
      InParallel(threads, kElements, [&](uint64_t first, uint64_t count) {
        UpdateInChunks(scalars, tile, first, count);
      });
    });
    state.SetIterationTime(seconds);
    update_seconds = std::min(update_seconds, seconds);
    const double streamed = Seconds([&] {
      InParallel(threads, stream.size(), [&](uint64_t first, uint64_t count) {
        for (uint64_t& word : std::span(stream).subspan(first, count)) word += 1;
      });
    });
    stream_seconds = std::min(stream_seconds, streamed);
    benchmark::ClobberMemory();
  }
  const auto total = static_cast<double>(bytes);
  using benchmark::Counter;
  state.counters["update_bytes_per_second"] = Counter(total / update_seconds);
  state.counters["ceiling_bytes_per_second"] = Counter(total / stream_seconds);
  state.counters["fraction"] = Counter(stream_seconds / update_seconds);
  state.SetLabel(std::string(AdamTargets().front()) + (split ? ", split master" : ", fp32 master"));
}

/// One thread, and all of the machine's.
void Threads(benchmark::internal::Benchmark* bench) {
  const auto all = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  bench->ArgName("threads")->Arg(1);
  if (all > 1) bench->Arg(all);
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Update, split_master, true)->Apply(Threads);
BENCHMARK_CAPTURE(Update, fp32_master, false)->Apply(Threads);

}  // namespace
}  // namespace penstock::kernels

BENCHMARK_MAIN();
