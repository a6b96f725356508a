// The scalar reference of every rule: one element after the other, as the rules' headers state.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/state/optimizer_rule.h"

namespace penstock::kernels {

template <typename T>
float LoadElement(const void* elements, uint64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(elements) + i * sizeof(T), sizeof(T));
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return ToFloat(value);
  }
}

inline float LoadGradient(const OptimizerTile& tile, uint64_t i) {
  switch (tile.gradient_dtype) {
    case DType::kBFloat16:
      return LoadElement<BFloat16>(tile.gradient, i);
    case DType::kFloat16:
      return LoadElement<Float16>(tile.gradient, i);
    case DType::kFloat32:
      break;
  }
  return LoadElement<float>(tile.gradient, i);
}

inline float LoadWeight(const OptimizerTile& tile, uint64_t i) {
  if (tile.lo.empty()) return WholeMaster(tile).As<float>()[i];
  return Join({tile.weight.As<BFloat16>()[i], tile.lo.As<int16_t>()[i]});
}

inline void StoreWeight(const OptimizerTile& tile, uint64_t i, float weight) {
  if (!tile.lo.empty()) {
    const SplitMaster halves = Split(weight);
    tile.weight.As<BFloat16>()[i] = halves.hi;
    tile.lo.As<int16_t>()[i] = halves.lo;
    return;
  }
  WholeMaster(tile).As<float>()[i] = weight;
  if (tile.weight.Has(Encoding::kBFloat16)) {
    tile.weight.As<BFloat16>()[i] = RoundToBFloat16(weight);
  }
  if (tile.weight.Has(Encoding::kFloat16)) {
    tile.weight.As<Float16>()[i] = Float16{RoundToFloat16(weight)};
  }
}

/// 0 for a moment that the rule does not have.
inline float LoadMoment(const PlaneView& moments, uint64_t i) {
  if (moments.Has(Encoding::kBFloat16)) return ToFloat(moments.As<BFloat16>()[i]);
  return moments.empty() ? 0 : moments.As<float>()[i];
}

inline void StoreMoment(const PlaneView& moments, uint64_t i, float value, uint32_t random) {
  if (moments.Has(Encoding::kBFloat16)) {
    moments.As<BFloat16>()[i] = RoundStochastically(value, random);
  } else if (!moments.empty()) {
    moments.As<float>()[i] = value;
  }
}

/// The figures of one element.
inline WeightFigures FiguresOfElement(float before, float after) {
  const double update = static_cast<double>(after - before);
  return {.sum_of_squares = static_cast<double>(after) * after,
          .update_sum_of_squares = update * update,
          .largest = std::bit_cast<float>(std::bit_cast<uint32_t>(after) & 0x7fff'ffff)};
}

/// `direction(scalars, g, m, v)` updates the moments m and v that the rule has and returns what the
/// weight goes along. Figures are added one element after the other, in double.
template <typename Scalars, typename Direction>
void UpdateReference(const Scalars& s, const OptimizerTile& tile,
                     std::span<WeightFigures> of_blocks, Direction direction) {
  const uint64_t n = ElementCountOf<Scalars>(tile);
  CheckFigures(of_blocks, n);
  std::ranges::fill(of_blocks, WeightFigures());
  const Decay decay = Rule<Scalars>::DecayOf(s);
  for (uint64_t i = 0; i < n; ++i) {
    float w = LoadWeight(tile, i);
    float m = LoadMoment(tile.exp_avg, i);
    float v = LoadMoment(tile.exp_avg_sq, i);
    float g = LoadGradient(tile, i) * s.grad_scale;
    const float before = w;
    if (decay == Decay::kL2) g = std::fma(w, s.decay, g);
    float d = direction(s, g, m, v);
    if (decay == Decay::kInUpdate) d = std::fma(w, s.decay, d);
    if (decay == Decay::kDecoupled) w = std::fma(w, s.decay, w);
    w = std::fma(d, s.negative_step_size, w);
    StoreWeight(tile, i, w);
    if (!of_blocks.empty()) of_blocks[i / kBlockElements].Add(FiguresOfElement(before, w));
    const uint32_t random = RoundingBits(tile.rounding.key, tile.rounding.first_element + i);
    StoreMoment(tile.exp_avg, i, m, random & 0xffff);
    StoreMoment(tile.exp_avg_sq, i, v, random >> 16);
  }
}

}  // namespace penstock::kernels
