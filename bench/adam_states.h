// The states of many tiles, placed in memory as in the engine's slab, and their update on several
// threads, for the benchmarks of Adam.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mapping.h"
#include "kernels/state/adam.h"

namespace penstock::kernels {

/// A split master has its weight in itself; a whole one writes a bf16 copy beside it.
enum class Master { kSplit, kWhole };

/// Bytes of memory traffic for an element with a bf16 gradient: master and moments read and
/// written, the gradient read, the copy written.
inline uint64_t BytesPerElement(Master master) { return master == Master::kSplit ? 26 : 28; }

/// The engine's tile size: the default of penstock.tile_elements.
inline constexpr uint64_t kTileElements = 1 << 20;

/// Weights, records (lo, exp_avg and exp_avg_sq of a tile, one after the other), gradients and
/// copies, each tile behind tile. In one tile of all elements the planes would be multiples of
/// 256 MiB apart, which some processors' first-level caches take for the same lines.
class AdamStates {
 public:
  AdamStates(Master master, uint64_t elements)
      : memory_(Mapping::Create(Bytes{elements * kBytes}).value()), next_(memory_.data()) {
    for (uint64_t at = 0; at < elements; at += kTileElements) {
      tiles_.push_back({.gradient_dtype = DType::kBFloat16});
    }
    const auto for_each = [&](auto make) {
      uint64_t left = elements;
      for (OptimizerTile& tile : tiles_) {
        make(tile, std::min(left, kTileElements));
        left -= std::min(left, kTileElements);
      }
    };
    const bool split = master == Master::kSplit;
    for_each([&](OptimizerTile& tile, uint64_t n) {
      if (split) {
        tile.weight = Cut(n, BFloat16{0x3f00});
      } else {
        tile.master = Cut(n, 0.5f);
      }
    });
    for_each([&](OptimizerTile& tile, uint64_t n) {
      if (split) tile.lo = Cut(n, int16_t{0});
      tile.exp_avg = Cut(n, 0.0f);
      tile.exp_avg_sq = Cut(n, 0.0f);
    });
    for_each(
        [&](OptimizerTile& tile, uint64_t n) { tile.gradient = Cut(n, BFloat16{0x3a80}).data(); });
    for_each([&](OptimizerTile& tile, uint64_t n) {
      if (!split) tile.weight = Cut(n, BFloat16{});
    });
  }

  std::span<const OptimizerTile> tiles() const { return tiles_; }

 private:
  static constexpr uint64_t kBytes = 16;  // max bytes of an element

  template <typename T>
  std::span<T> Cut(uint64_t elements, T value) {
    const std::span<T> values(reinterpret_cast<T*>(next_), elements);
    next_ += values.size_bytes();
    std::ranges::fill(values, value);
    return values;
  }

  Mapping memory_;
  std::byte* next_;
  std::vector<OptimizerTile> tiles_;
};

inline double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Calls work(first, count) on `threads` threads, each with its share of [0, total).
inline void InParallel(uint64_t threads, uint64_t total,
                       const std::function<void(uint64_t, uint64_t)>& work) {
  const uint64_t share = total / threads;
  std::vector<std::jthread> team;
  for (uint64_t i = 0; i < threads; ++i) {
    team.emplace_back(work, i * share, i + 1 == threads ? total - i * share : share);
  }
}

/// One update in chunks, as the optimizer driver does it; each thread has whole tiles.
inline void UpdateInParallel(uint64_t threads, const AdamScalars& scalars,
                             std::span<const OptimizerTile> tiles) {
  InParallel(threads, tiles.size(), [&](uint64_t first, uint64_t count) {
    for (const OptimizerTile& tile : tiles.subspan(first, count)) {
      const uint64_t n = ElementCount(tile);
      for (uint64_t done = 0; done < n; done += kChunkElements) {
        AdamUpdate(scalars, Part(tile, done, std::min(kChunkElements, n - done)));
      }
    }
  });
}

}  // namespace penstock::kernels
