// What do the figures of gradients cost in the pass that adds their squares?
//
// 64 Mi elements, which no cache holds. Each iteration computes only the block sums, and then the
// block sums with the other figures, in turn, so that conditions are equal. (The figures of weights
// have no such pair, because every update computes them. adam_bench measures how close an update is
// to the machine's bandwidth.) The time of an iteration is that of the pass with figures. Counters,
// medians over the iterations:
//   bytes_per_second  read by the pass with figures
//   ratio             its time over that of the sums alone, of the same iteration
// In a cache (4096 elements, the second set) nothing hides the cost of the figures.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "base/median.h"
#include "kernels/state/block_sums.h"
#include "kernels/vector_targets.h"

namespace penstock::kernels {
namespace {

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Gradients of 1e-3 with signs that change.
Mapping MakeGradient(DType dtype, uint64_t elements) {
  Mapping memory = Mapping::Create(SizeOf(dtype) * elements).value();
  for (uint64_t i = 0; i < elements; ++i) {
    const float value = i % 3 == 0 ? -1e-3F : 1e-3F;
    if (dtype == DType::kFloat32) {
      reinterpret_cast<float*>(memory.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(memory.data())[i] =
          dtype == DType::kBFloat16 ? RoundToBFloat16(value).bits : RoundToFloat16(value);
    }
  }
  return memory;
}

void SumsWithFigures(benchmark::State& state, DType dtype) {
  const auto elements = static_cast<uint64_t>(state.range(0));
  const uint64_t repeats = std::max<uint64_t>(1, (1 << 20) / elements);
  const Mapping gradient = MakeGradient(dtype, elements);
  std::vector<double> sums(elements / kBlockElements);
  std::vector<float> largest(sums.size());
  std::vector<uint32_t> nonfinite(sums.size());
  std::vector<double> speeds, ratios;
  for (auto _ : state) {
    const double alone = SecondsOf([&] {
      for (uint64_t i = 0; i < repeats; ++i) BlockSums(gradient.data(), dtype, elements, sums);
    });
    const double with = SecondsOf([&] {
      for (uint64_t i = 0; i < repeats; ++i) {
        BlockSumsAndFigures(gradient.data(), dtype, elements, {sums, largest, nonfinite});
      }
    });
    state.SetIterationTime(with);
    speeds.push_back(static_cast<double>((SizeOf(dtype) * elements).value * repeats) / with);
    ratios.push_back(with / alone);
    benchmark::ClobberMemory();
  }
  state.counters["bytes_per_second"] = benchmark::Counter(MedianOf(speeds));
  state.counters["ratio"] = benchmark::Counter(MedianOf(ratios));
  state.SetLabel(std::string(VectorTargets().front()));
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("elements")->Arg(64 << 20)->Arg(kBlockElements);
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(SumsWithFigures, fp32, DType::kFloat32)->Apply(Sizes);
BENCHMARK_CAPTURE(SumsWithFigures, bf16, DType::kBFloat16)->Apply(Sizes);
BENCHMARK_CAPTURE(SumsWithFigures, fp16, DType::kFloat16)->Apply(Sizes);

}  // namespace
}  // namespace penstock::kernels

BENCHMARK_MAIN();
