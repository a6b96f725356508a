// How close is the fused update to the machine's memory bandwidth?
//
// 64 Mi parameters, bf16 gradient in and bf16 weight out, with both kinds of master: 26 bytes a
// parameter split, 28 whole. Each iteration updates states that no cache holds, and then reads and
// writes back as many bytes of another buffer with one addition a word: the min work of any update
// of that size. Both run on the same threads, one after the other, so that conditions are equal.
// The time of an iteration is that of the update. Counters, medians over the iterations:
//   update_bytes_per_second   bytes read and written by the update
//   ceiling_bytes_per_second  the same for the read-modify-write stream
//   fraction                  the first over the second, of the same iteration
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mapping.h"
#include "base/median.h"
#include "bench/adam_states.h"
#include "kernels/state/adam.h"
#include "kernels/vector_targets.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kElements = 64 << 20;

void Update(benchmark::State& state, Master master) {
  const auto threads = static_cast<uint64_t>(state.range(0));
  const AdamStates states(master, kElements);
  const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.01}, 1e-3, 10, 1);
  const uint64_t bytes = kElements * BytesPerElement(master);
  const Mapping memory = Mapping::Create(Bytes{bytes / 2}).value();  // each byte read and written
  const std::span stream(reinterpret_cast<uint64_t*>(memory.data()), bytes / 2 / sizeof(uint64_t));
  std::ranges::fill(stream, 1);

  const auto total = static_cast<double>(bytes);
  std::vector<double> updated, streamed, fractions;
  for (auto _ : state) {
    const double update = Seconds([&] { UpdateInParallel(threads, scalars, states.tiles()); });
    state.SetIterationTime(update);
    const double ceiling = Seconds([&] {
      InParallel(threads, stream.size(), [&](uint64_t first, uint64_t count) {
        for (uint64_t& word : stream.subspan(first, count)) word += 1;
      });
    });
    updated.push_back(total / update);
    streamed.push_back(total / ceiling);
    fractions.push_back(ceiling / update);
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters["update_bytes_per_second"] = Counter(MedianOf(updated));
  state.counters["ceiling_bytes_per_second"] = Counter(MedianOf(streamed));
  state.counters["fraction"] = Counter(MedianOf(fractions));
  state.SetLabel(std::string(VectorTargets().front()));
}

/// One thread, and all of the machine's.
void Threads(benchmark::internal::Benchmark* bench) {
  const auto all = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  bench->ArgName("threads")->Arg(1);
  if (all > 1) bench->Arg(all);
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Update, split_master, Master::kSplit)->Apply(Threads);
BENCHMARK_CAPTURE(Update, whole_master_and_copy, Master::kWhole)->Apply(Threads);

}  // namespace
}  // namespace penstock::kernels

BENCHMARK_MAIN();
