// The unit that an optimizer updates: the master weights, the moments and the gradient of some
// elements.
//
// The rules (kernels/state/adam.h, lion.h, adagrad.h, lamb.h) update a tile in one pass. They share
// these properties:
// - IEEE binary32, round to nearest even, in the order that the rule's header states; every
//   instruction set, and the scalar reference, give the same bits. Only the bits of a NaN are left
//   open. Denormals are kept, provided that the calling thread keeps them (base/denormals.h).
// - Gradients of any dtype are converted exactly.
// - The bits of an element depend on its own values, on the scalars of the step and, if moments are
//   bf16, on its rounding key and index; not on tiles, chunks or threads.
//
// Moments in bf16 are rounded stochastically: up with a probability of the distance to the lower
// neighbour, so that the mean of many roundings is the value itself and steps far below half a unit
// are not lost (Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015).
//
// Threads: the functions keep no state; any number may run at once, on tiles that do not overlap.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "base/check.h"
#include "kernels/dtype.h"
#include "kernels/state/figures.h"

namespace penstock::kernels {

/// Selects the random bits that round the bf16 moments of a tile.
struct StochasticRounding {
  uint64_t key = 0;  ///< made of seed, module and update: two words of Philox (base/random.h)
  uint64_t first_element = 0;  ///< begin of the tile in the flat index of its module
};

/// Consecutive elements of a plane, stored one by one in the plane's encoding. Empty if a tile
/// lacks the plane. A view: its holder may write to the elements.
class PlaneView {
 public:
  PlaneView() = default;
  PlaneView(Encoding encoding, std::byte* data, uint64_t count)
      : encoding_(encoding), data_(data), count_(count) {}
  /// Makes a view of a contiguous range of float, BFloat16, Float16 or int16_t.
  template <std::ranges::contiguous_range Values>
  // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
  PlaneView(Values&& values)
      : PlaneView(EncodingOf<std::ranges::range_value_t<Values>>(),
                  reinterpret_cast<std::byte*>(std::ranges::data(values)),
                  std::ranges::size(values)) {}

  bool empty() const { return count_ == 0; }
  uint64_t size() const { return count_; }
  Encoding encoding() const { return encoding_; }
  std::byte* data() const { return data_; }
  Bytes bytes() const { return Bytes{ElementSize() * count_}; }
  /// Whether there are elements, and they are of this encoding.
  bool Has(Encoding encoding) const { return count_ > 0 && encoding_ == encoding; }
  /// Returns the elements as values of their type; null if there are none.
  template <typename T>
  T* As() const {
    PENSTOCK_CHECK(count_ == 0 || encoding_ == EncodingOf<T>(), "{} taken for {}",
                   ToString(encoding_), ToString(EncodingOf<T>()));
    return count_ == 0 ? nullptr : reinterpret_cast<T*>(data_);
  }
  /// Returns elements first … first + count - 1; an empty view for an empty one.
  PlaneView Part(uint64_t first, uint64_t count) const {
    if (count_ == 0) return {};
    return {encoding_, data_ + ElementSize() * first, count};
  }

 private:
  template <typename T>
  static constexpr Encoding EncodingOf() {
    using Value = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<Value, float>) {
      return Encoding::kFloat32;
    } else if constexpr (std::is_same_v<Value, BFloat16>) {
      return Encoding::kBFloat16;
    } else if constexpr (std::is_same_v<Value, Float16>) {
      return Encoding::kFloat16;
    } else {
      static_assert(std::is_same_v<Value, int16_t>);
      return Encoding::kInt16;
    }
  }
  uint64_t ElementSize() const { return encoding_ == Encoding::kFloat32 ? 4 : 2; }

  Encoding encoding_{};
  std::byte* data_ = nullptr;
  uint64_t count_ = 0;
};

/// One tile, or any part of one. A plane is empty or has as many elements as the others; no
/// alignment is needed beyond that of its elements, and the gradient needs none.
struct OptimizerTile {
  /// What the model computes with. fp32: the master itself. bf16 with a lo: the upper half of a
  /// split master (kernels/dtype.h). bf16 or fp16 with a master: the master rounded to nearest
  /// even, which is only written, and past the cache.
  PlaneView weight;
  PlaneView lo;      ///< int16
  PlaneView master;  ///< fp32
  /// The moments that the rule has, both fp32 or both bf16. Adagrad's sum of squares is exp_avg_sq.
  PlaneView exp_avg;
  PlaneView exp_avg_sq;
  StochasticRounding rounding;
  /// Elements of `gradient_dtype`.
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kFloat32;
};

/// The number of elements that the optimizer processes at once, so that they are hashed and updated
/// in the cache: at 14 bytes of states and gradient each, two such chunks fit an L2 cache of 512
/// KiB.
inline constexpr uint64_t kChunkElements = 4 * kBlockElements;

/// Checks that there are no figures, or one for each block of `n` elements, the last of which may
/// be a part of one.
void CheckFigures(std::span<const WeightFigures> of_blocks, uint64_t n);

/// Returns the number of elements, after checking that the planes agree and that there is one
/// master.
uint64_t ElementCount(const OptimizerTile& tile);
/// Returns the plane of a master that is not split.
inline const PlaneView& WholeMaster(const OptimizerTile& tile) {
  return tile.master.empty() ? tile.weight : tile.master;
}
/// Returns elements first … first + count - 1 of the tile, for a caller that goes through it in
/// chunks.
OptimizerTile Part(const OptimizerTile& tile, uint64_t first, uint64_t count);

/// Chris Wellons' lowbias32 ("Prospecting for Hash Functions", 2018): a bijection of 32 bits.
constexpr uint32_t MixBits(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352d;
  x = (x ^ x >> 15) * 0x846ca68b;
  return x ^ x >> 16;
}

/// Returns the random bits of an element: the lower half rounds exp_avg, the upper half exp_avg_sq.
/// Elements that are 2^32 apart have the same bits.
constexpr uint32_t RoundingBits(uint64_t key, uint64_t element) {
  const uint32_t mixed = MixBits(static_cast<uint32_t>(element) ^ static_cast<uint32_t>(key));
  return MixBits(mixed + static_cast<uint32_t>(key >> 32));
}

/// Rounds away from zero with probability (the 16 bits that bfloat16 lacks) / 2^16, if `random` is
/// uniform on 0 … 2^16 - 1; NaN stays NaN (quiet); values beyond the largest bfloat16 become
/// infinite.
constexpr BFloat16 RoundStochastically(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return RoundToBFloat16(value);
  return BFloat16{static_cast<uint16_t>((bits + random) >> 16)};
}

}  // namespace penstock::kernels
