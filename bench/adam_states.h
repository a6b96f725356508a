// The states of one large tile in memory like the slab's, and their update on several threads: what
// the benchmarks of Adam measure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mapping.h"
#include "kernels/adam.h"

namespace penstock::kernels {

/// A split master has its weight in itself; a whole one writes a bf16 copy beside it.
enum class Master { kSplit, kWhole };

/// Bytes of memory traffic for an element with a bf16 gradient: master and moments read and
/// written, the gradient read, the copy written.
inline uint64_t BytesPerElement(Master master) { return master == Master::kSplit ? 26 : 28; }

class AdamStates {
 public:
  AdamStates(Master master, uint64_t elements) : elements_(elements) {
    if (master == Master::kSplit) {
      tile_.weight_hi = Allocate(BFloat16{0x3f00});
      tile_.weight_lo = Allocate(int16_t{0});
    } else {
      tile_.weight = Allocate(0.5f);
      tile_.weight_bf16 = Allocate(BFloat16{});
    }
    tile_.exp_avg = Allocate(0.0f);
    tile_.exp_avg_sq = Allocate(0.0f);
    tile_.gradient = Allocate(BFloat16{0x3a80}).data();
    tile_.gradient_dtype = DType::kBFloat16;
  }

  const OptimizerTile& tile() const { return tile_; }

 private:
  template <typename T>
  std::span<T> Allocate(T value) {
    memory_.push_back(Mapping::Create(Bytes{elements_ * sizeof(T)}).value());
    const std::span<T> values(reinterpret_cast<T*>(memory_.back().data()), elements_);
    std::ranges::fill(values, value);
    return values;
  }

  uint64_t elements_;
  std::vector<Mapping> memory_;
  OptimizerTile tile_;
};

inline double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Calls work(first, count) on `threads` threads, each with its share of [0, total).
inline void InParallel(uint64_t threads, uint64_t total,
                       const std::function<void(uint64_t, uint64_t)>& work) {
  const uint64_t share = total / threads / kChunkElements * kChunkElements;
  std::vector<std::jthread> team;
  for (uint64_t i = 0; i < threads; ++i) {
    team.emplace_back(work, i * share, i + 1 == threads ? total - i * share : share);
  }
}

/// One update in chunks, as the optimizer driver does it.
inline void UpdateInParallel(uint64_t threads, const AdamScalars& scalars,
                             const OptimizerTile& tile) {
  InParallel(threads, ElementCount(tile), [&](uint64_t first, uint64_t count) {
    for (uint64_t done = 0; done < count; done += kChunkElements) {
      AdamUpdate(scalars, Part(tile, first + done, std::min(kChunkElements, count - done)));
    }
  });
}

}  // namespace penstock::kernels
