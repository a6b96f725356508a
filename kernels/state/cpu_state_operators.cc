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

/// Works in pieces that stay in the first-level cache while every row is added to them.
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

/// Works in pieces whose counts fit into the results of float comparisons.
ZeroCounts ZerosOf(std::span<const float> values) {
  ZeroCounts counts;
  for (uint64_t begin = 0; begin < values.size(); begin += kElementGrain) {
    uint32_t exact = 0;
    uint32_t rounded = 0;
    for (const float value :
         values.subspan(begin, std::min(kElementGrain, values.size() - begin))) {
      exact += value == 0 ? 1 : 0;
      rounded += std::abs(value) <= kMaxZeroInFloat16 ? 1 : 0;
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

  void GradientFigures(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                       const GradientEnd* ends, uint64_t end_count,
                       const DeviceBlockFigures& figures) override {
    PENSTOCK_CHECK(n % kBlockElements == 0);
    const uint64_t blocks = n / kBlockElements;
    Launch(stream, [=, this] {
      ParallelRanges(threads_, blocks, 1, [&](Range range) {
        kernels::BlockSumsAndFigures(
            gradient + range.begin * kBlockElements * SizeOf(dtype).value, dtype,
            range.size() * kBlockElements,
            {.sums = {figures.sums + range.begin, range.size()},
             .largest = {figures.largest + range.begin, range.size()},
             .nonfinite = {figures.nonfinite + range.begin, range.size()}});
      });
      ParallelRanges(threads_, end_count, 1, [&](Range range) {
        for (uint64_t i = range.begin; i < range.end; ++i) {
          const kernels::GradientFigures end =
              PartFigures(gradient + ends[i].begin * SizeOf(dtype).value, dtype, ends[i].elements);
          figures.sums[blocks + i] = end.sum_of_squares;
          figures.largest[blocks + i] = end.largest;
          figures.nonfinite[blocks + i] = static_cast<uint32_t>(end.nonfinite);
        }
      });
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

  void Update(device::Stream& stream, const PartsUpdate& update, const StateParts& parts,
              WeightFigures* of_blocks) override {
    ForEachPart(
        stream, parts, parts.blocks,
        [scalars = update.scalars, key = update.rounding_key, step_sizes = update.step_sizes,
         of_blocks](const StatePart& part, OptimizerTile tile, Range blocks) {
          tile.rounding.key = key;
          std::span<WeightFigures> figures;
          if (part.tensor != kNoTensor) {
            figures = {of_blocks + blocks.begin, blocks.size()};
          }
          kernels::Update(OfTensor(scalars, part.tensor, step_sizes), tile, figures);
        });
  }

  void SumForTrust(device::Stream& stream, const OptimizerScalars& scalars, const StateParts& parts,
                   TrustSums* of_blocks) override {
    ForEachPart(stream, parts, parts.measured_blocks,
                [scalars, of_blocks](const StatePart&, const OptimizerTile& tile, Range blocks) {
                  kernels::SumForTrust(scalars, tile, {of_blocks + blocks.begin, blocks.size()});
                });
  }

 private:
  /// The blocks of a range of elements that begins with one; the last may be a part.
  static Range BlocksOf(Range elements) {
    return {elements.begin / kBlockElements, (elements.end + kBlockElements - 1) / kBlockElements};
  }

  /// Returns the scalars of a part's tensor.
  static OptimizerScalars OfTensor(const OptimizerScalars& scalars, uint64_t tensor,
                                   const float* step_sizes) {
    OptimizerScalars of_tensor = scalars;
    auto* const lamb = std::get_if<LambScalars>(&of_tensor);
    if (lamb != nullptr && step_sizes != nullptr && tensor != kNoTensor) {
      lamb->negative_step_size = step_sizes[tensor];
    }
    return of_tensor;
  }

  /// Calls `pass(part, tile, blocks)` with what lies of each part in the first `blocks` blocks, cut
  /// between threads where blocks begin.
  template <typename Pass>
  void ForEachPart(device::Stream& stream, const StateParts& parts, uint64_t blocks,
                   Pass pass) const {
    if (blocks == 0) return;
    Launch(stream, [=, this] {
      ParallelRanges(threads_, blocks, 1, [&](Range range) {
        uint64_t index = PartWithBlock(parts.parts, parts.count, range.begin);
        for (uint64_t block = range.begin; block < range.end; ++index) {
          const StatePart& part = parts.parts[index];
          const uint64_t end = std::min(range.end, part.first_block + part.blocks());
          const uint64_t first = (block - part.first_block) * kBlockElements;
          const uint64_t last = std::min((end - part.first_block) * kBlockElements, part.elements);
          pass(part, TileOf(parts.kind, part, first, last - first), Range{block, end});
          block = end;
        }
      });
    });
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
