// The state operators on the CPU device: the functions of this folder, on OpenMP's pool of the
// stream's thread, as the operators of a model have it.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"
#include "kernels/convert_elements.h"
#include "kernels/cpu_parallel.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/state_operator_factories.h"

namespace penstock::kernels {
namespace {

/// Elements in the smallest piece of work that is given to a thread.
constexpr uint64_t kElementGrain = 1024;

/// In pieces that stay in the first-level cache while every row is added to them.
void AddRange(float* sums, const ElementRows& parts, Range range) {
  std::array<float, kElementGrain> exact;
  for (uint64_t begin = range.begin; begin < range.end; begin += kElementGrain) {
    const uint64_t size = std::min(kElementGrain, range.end - begin);
    for (uint64_t part = 0; part < parts.count; ++part) {
      const std::byte* const from =
          parts.data + SizeOf(parts.dtype).value * (part * parts.stride + begin);
      const auto* row = reinterpret_cast<const float*>(from);
      if (parts.dtype != DType::kFloat32) {
        ConvertElements(parts.dtype, from, DType::kFloat32, exact.data(), size);
        row = exact.data();
      }
      for (uint64_t i = 0; i < size; ++i) sums[begin + i] += row[i];
    }
  }
}

/// In pieces whose counts fit what vectors of floats compare into.
ZeroCounts ZerosOf(std::span<const float> values) {
  ZeroCounts counts;
  for (uint64_t begin = 0; begin < values.size(); begin += kElementGrain) {
    uint32_t exact = 0;
    uint32_t rounded = 0;
    for (const float value :
         values.subspan(begin, std::min(kElementGrain, values.size() - begin))) {
      exact += value == 0 ? 1 : 0;
      rounded += std::abs(value) <= kMostThatIsZeroInFloat16 ? 1 : 0;
    }
    counts.Add({exact, rounded});
  }
  return counts;
}

class CpuStateOperators final : public StateOperators {
 public:
  explicit CpuStateOperators(int threads) : threads_(threads) {}

  Result<std::unique_ptr<StateOperators>> WithThreads(int threads) const override {
    return CreateCpuStateOperators(threads);
  }

  void RoundGradients(device::Stream& stream, const float* in, DType dtype, uint64_t n,
                      std::byte* out) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, n, kElementGrain, [&](Range range) {
        ConvertElements(DType::kFloat32, in + range.begin, dtype,
                        out + range.begin * SizeOf(dtype).value, range.size());
      });
    });
  }

  void AddInOrder(device::Stream& stream, float* sums, uint64_t n,
                  const ElementRows& parts) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, n, kElementGrain,
                     [&](Range range) { AddRange(sums, parts, range); });
    });
  }

  void AddGradient(device::Stream& stream, const std::byte* values, DType dtype, uint64_t n,
                   bool first, float* sums) override {
    const ElementRows one{.data = values, .dtype = dtype, .stride = n, .count = 1};
    Launch(stream, [=, this] {
      ParallelRanges(threads_, n, kElementGrain, [&](Range range) {
        if (!first) return AddRange(sums, one, range);
        ConvertElements(dtype, values + range.begin * SizeOf(dtype).value, DType::kFloat32,
                        sums + range.begin, range.size());
      });
    });
  }

  void BlockSums(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                 double* sums, uint32_t* finite) override {
    SumInParallel(stream, gradient, dtype, n, finite, [=](const std::byte* from, Range range) {
      const Range blocks = BlocksOf(range);
      return kernels::BlockSums(from, dtype, range.size(), {sums + blocks.begin, blocks.size()});
    });
  }

  void BlockSumsAndFigures(device::Stream& stream, const std::byte* gradient, DType dtype,
                           uint64_t n, const DeviceBlockFigures& figures,
                           uint32_t* finite) override {
    SumInParallel(stream, gradient, dtype, n, finite, [=](const std::byte* from, Range range) {
      const Range blocks = BlocksOf(range);
      return kernels::BlockSumsAndFigures(
          from, dtype, range.size(),
          {.sums = {figures.sums + blocks.begin, blocks.size()},
           .largest = {figures.largest + blocks.begin, blocks.size()},
           .nonfinite = {figures.nonfinite + blocks.begin, blocks.size()}});
    });
  }

  void AddZeroCounts(device::Stream& stream, const float* values, uint64_t n,
                     ZeroCounts* counts) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, n, kElementGrain, [&](Range range) {
        const ZeroCounts found = ZerosOf({values + range.begin, range.size()});
        std::atomic_ref(counts->exact) += found.exact;
        std::atomic_ref(counts->rounded) += found.rounded;
      });
    });
  }

  void Update(device::Stream& stream, const OptimizerScalars& scalars,
              const OptimizerTile& tile) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, ElementCount(tile), kElementGrain, [&](Range range) {
        kernels::Update(scalars, Part(tile, range.begin, range.size()));
      });
    });
  }

  void UpdateAndMeasure(device::Stream& stream, const OptimizerScalars& scalars,
                        const OptimizerTile& tile, WeightFigures* of_blocks) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, ElementCount(tile), kBlockElements, [&](Range range) {
        const Range blocks = BlocksOf(range);
        kernels::Update(scalars, Part(tile, range.begin, range.size()),
                        {of_blocks + blocks.begin, blocks.size()});
      });
    });
  }

  void SumForTrust(device::Stream& stream, const OptimizerScalars& scalars,
                   const OptimizerTile& tile, TrustSums* of_blocks) override {
    Launch(stream, [=, this] {
      ParallelRanges(threads_, ElementCount(tile), kBlockElements, [&](Range range) {
        const Range blocks = BlocksOf(range);
        kernels::SumForTrust(scalars, Part(tile, range.begin, range.size()),
                             {of_blocks + blocks.begin, blocks.size()});
      });
    });
  }

 private:
  /// The blocks of a range of elements that begins with one; the last may be a part.
  static Range BlocksOf(Range elements) {
    return {elements.begin / kBlockElements, (elements.end + kBlockElements - 1) / kBlockElements};
  }

  /// `sum(elements, range)` returns whether the elements of a range of blocks are finite.
  template <typename Sum>
  void SumInParallel(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                     uint32_t* finite, Sum sum) const {
    PENSTOCK_CHECK(n % kBlockElements == 0);
    Launch(stream, [=, this] {
      std::atomic<bool> all_finite = true;
      ParallelRanges(threads_, n, kBlockElements, [&](Range range) {
        if (!sum(gradient + range.begin * SizeOf(dtype).value, range)) all_finite = false;
      });
      *finite = all_finite ? 1 : 0;
    });
  }

  void Launch(device::Stream& stream, std::function<void()> kernel) const {
    auto* const cpu_stream = dynamic_cast<device::CpuStream*>(&stream);
    PENSTOCK_CHECK(cpu_stream != nullptr,
                   "state operators of the CPU device need one of its streams");
    cpu_stream->Launch([threads = threads_, kernel = std::move(kernel)] {
      const ThreadCountScope scope(threads);
      kernel();
    });
  }

  const int threads_;
};

}  // namespace

Result<std::unique_ptr<StateOperators>> CreateCpuStateOperators(int threads) {
  PENSTOCK_TRY(CheckThreads(threads));
  return std::unique_ptr<StateOperators>(std::make_unique<CpuStateOperators>(threads));
}

}  // namespace penstock::kernels
