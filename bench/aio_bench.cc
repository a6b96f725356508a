// How fast is a drive with each engine, block size, queue depth and direction?
//
// Each iteration moves 64 MiB of an unnamed file of 1 GiB, written once, with O_DIRECT, so no page
// cache is warm; its time is that of the transfers. "both" reads and writes in turn. Set
// PENSTOCK_BENCH_PATH to a folder on the drive (default: the present one), PENSTOCK_BENCH_SIZE to
// another size of the file, of which an iteration then moves a sixteenth. Counters: CPU seconds of
// the process for each GB, and the median and 99th percentile of a block's latency in the last
// iteration. The ceiling is the best row; for a comparison with fio see bench/fio_ratio.py.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "aio/probe.h"

namespace penstock::aio {
namespace {

/// A setting from the environment, which nothing here changes.
std::string Setting(const char* name, const char* fallback) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? fallback : value;
}

Bytes FileSize() { return ParseBytes(Setting("PENSTOCK_BENCH_SIZE", "1GiB")).value(); }
Bytes MovedBytes() { return Bytes{FileSize().value / 16}; }

/// Made and written at the first use, then shared by all.
ProbeFile& SharedFile() {
  static ProbeFile file = [] {
    ProbeFile made = ProbeFile::Create(Setting("PENSTOCK_BENCH_PATH", "."), FileSize(),
                                       std::max(MovedBytes(), 1_MiB))
                         .value();
    PENSTOCK_CHECK(made.Fill({}, Seconds::max(), [] { return false; }).ok());
    return made;
  }();
  return file;
}

void Transfer(benchmark::State& state, EngineKind engine, Direction direction) {
  const auto depth = static_cast<int>(state.range(1));
  Result<ProbeRig> rig =
      ProbeRig::Create({.kind = engine,
                        .block_size = Bytes{static_cast<uint64_t>(state.range(0)) << 10},
                        .queue_depth = depth,
                        .thread_count = engine == EngineKind::kThreads ? depth : 1},
                       &SharedFile());
  if (!rig.ok()) return state.SkipWithError(rig.error().message.c_str());
  const Bytes moved = MovedBytes();
  Probe last;
  double cpu = 0;
  for (auto _ : state) {
    const Result<Probe> probe =
        rig->Measure(direction, {.bytes = moved, .time = Seconds::max()}, [] { return false; });
    if (!probe.ok()) return state.SkipWithError(probe.error().message.c_str());
    last = *probe;
    cpu += last.cpu_s_per_gb;
    state.SetIterationTime(static_cast<double>(moved.value) / 1e9 / last.gbps);
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(moved.value));
  state.counters["cpu_s_per_gb"] = cpu / iterations;
  state.counters["median_us"] = last.median_us;
  state.counters["p99_us"] = last.p99_us;
}

void Grid(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"block_kib", "depth"});
  for (const int64_t block_kib : {64, 256, 1024, 4096}) {
    for (const int64_t depth : {1, 8, 32}) {
      if (Bytes{static_cast<uint64_t>(block_kib * depth) << 10} <= MovedBytes()) {
        bench->Args({block_kib, depth});
      }
    }
  }
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Transfer, io_uring_read, EngineKind::kUring, Direction::kRead)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, io_uring_write, EngineKind::kUring, Direction::kWrite)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, io_uring_both, EngineKind::kUring, Direction::kBoth)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, libaio_read, EngineKind::kLibaio, Direction::kRead)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, libaio_write, EngineKind::kLibaio, Direction::kWrite)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, libaio_both, EngineKind::kLibaio, Direction::kBoth)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, threads_read, EngineKind::kThreads, Direction::kRead)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, threads_write, EngineKind::kThreads, Direction::kWrite)->Apply(Grid);
BENCHMARK_CAPTURE(Transfer, threads_both, EngineKind::kThreads, Direction::kBoth)->Apply(Grid);

}  // namespace
}  // namespace penstock::aio

BENCHMARK_MAIN();
