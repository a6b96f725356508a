// What an optimizer updates: the master weights, the moments and the gradient of some elements.
//
// The rules (kernels/adam.h, lion.h, adagrad.h) update a tile in one pass. What they share:
// - IEEE binary32, round to nearest even, in the order that the rule's header states; every
//   instruction set, and the scalar reference, give the same bits. Only which bits a NaN has is
//   left open. Denormals are kept, provided that the calling thread keeps them (base/denormals.h).
// - Gradients of any dtype are converted exactly.
// - The bits of an element depend on nothing but its own values, the scalars of the step and, where
//   moments are bf16, its rounding key and index: not on tiles, chunks or threads.
//
// Moments in bf16 are rounded stochastically: up with a probability of the distance to the lower
// neighbour, so that the mean of many roundings is the value itself and steps far below half a unit
// are not lost (Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015).
//
// Threads: the functions keep no state; any number may run at once, on tiles that do not overlap.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace penstock::kernels {

/// Which random bits round the bf16 moments of a tile.
struct StochasticRounding {
  uint64_t key = 0;            ///< of seed, module and update: two words of Philox (base/random.h)
  uint64_t first_element = 0;  ///< where the tile begins in the flat index of its module
};

/// One tile, or any part of one. A span is empty or has as many elements as the others; no
/// alignment is needed beyond that of its elements, and the gradient needs none.
struct OptimizerTile {
  /// The master: split (kernels/dtype.h; bf16 training, hi is the weight that the model computes
  /// with) or whole.
  std::span<BFloat16> weight_hi;
  std::span<int16_t> weight_lo;
  std::span<float> weight;
  /// The moments that the rule has, both fp32 or both bf16. Adagrad's sum of squares is exp_avg_sq.
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  std::span<BFloat16> exp_avg_bf16;
  std::span<BFloat16> exp_avg_sq_bf16;
  StochasticRounding rounding;
  /// With a whole master, where wanted: the new weight as the model computes with it, rounded to
  /// nearest even. It is only written, and past the cache.
  std::span<BFloat16> weight_bf16;
  std::span<Float16> weight_fp16;
  /// Elements of `gradient_dtype`.
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kFloat32;
};

/// Elements that the optimizer passes at once, so that they are hashed and updated in the cache: at
/// 14 bytes of states and gradient each, two such chunks fit an L2 cache of 512 KiB.
inline constexpr uint64_t kChunkElements = 4 * kBlockElements;

/// The number of elements, after checking that the spans agree and form one of the layouts.
uint64_t ElementCount(const OptimizerTile& tile);
/// Elements first … first + count - 1 of the tile, for a caller that goes through it in chunks.
OptimizerTile Part(const OptimizerTile& tile, uint64_t first, uint64_t count);

/// Chris Wellons' lowbias32 ("Prospecting for Hash Functions", 2018): a bijection of 32 bits.
constexpr uint32_t MixBits(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352d;
  x = (x ^ x >> 15) * 0x846ca68b;
  return x ^ x >> 16;
}

/// The random bits of an element: the lower half rounds exp_avg, the upper half exp_avg_sq.
/// Elements that are 2^32 apart have the same.
constexpr uint32_t RoundingBits(uint64_t key, uint64_t element) {
  const uint32_t mixed = MixBits(static_cast<uint32_t>(element) ^ static_cast<uint32_t>(key));
  return MixBits(mixed + static_cast<uint32_t>(key >> 32));
}

/// Rounds away from zero with probability (the 16 bits that bfloat16 lacks) / 2^16, if `random` is
/// uniform on 0 … 2^16 - 1; NaN stays NaN (quiet), and beyond the largest bfloat16 is infinity.
constexpr BFloat16 RoundStochastically(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return RoundToBFloat16(value);
  return BFloat16{static_cast<uint16_t>((bits + random) >> 16)};
}

}  // namespace penstock::kernels
