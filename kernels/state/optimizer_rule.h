// The properties of a rule that its scalar reference and vector code share: its moments and how it
// decays weights. Everything else of a rule is its direction, a function of the gradient and the
// moments; the weight goes along it by the step size.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "kernels/state/adagrad.h"
#include "kernels/state/adam.h"
#include "kernels/state/lamb.h"
#include "kernels/state/lion.h"

namespace penstock::kernels {

enum class Decay {
  kNone,
  kL2,         ///< added to the gradient
  kDecoupled,  ///< taken from the weight before the step
  kInUpdate,   ///< added to the direction
};

/// A rule is known by its scalars.
template <typename Scalars>
struct Rule;

template <>
struct Rule<AdamScalars> {
  static constexpr bool kExpAvg = true, kExpAvgSq = true, kL2 = true, kDecoupled = true;
  static constexpr bool kInUpdate = false;
  static Decay DecayOf(const AdamScalars& s) {
    if (s.decay == 0) return Decay::kNone;
    return s.adam_w_mode ? Decay::kDecoupled : Decay::kL2;
  }
};

template <>
struct Rule<LionScalars> {
  static constexpr bool kExpAvg = true, kExpAvgSq = false, kL2 = false, kDecoupled = true;
  static constexpr bool kInUpdate = false;
  static Decay DecayOf(const LionScalars& s) {
    return s.decay == 0 ? Decay::kNone : Decay::kDecoupled;
  }
};

template <>
struct Rule<AdagradScalars> {
  static constexpr bool kExpAvg = false, kExpAvgSq = true, kL2 = true, kDecoupled = false;
  static constexpr bool kInUpdate = false;
  static Decay DecayOf(const AdagradScalars& s) { return s.decay == 0 ? Decay::kNone : Decay::kL2; }
};

template <>
struct Rule<LambScalars> {
  static constexpr bool kExpAvg = true, kExpAvgSq = true, kL2 = false, kDecoupled = false;
  static constexpr bool kInUpdate = true;
  static Decay DecayOf(const LambScalars& s) {
    return s.decay == 0 ? Decay::kNone : Decay::kInUpdate;
  }
};

inline bool HasBFloat16Moments(const OptimizerTile& tile) {
  return tile.exp_avg.Has(Encoding::kBFloat16) || tile.exp_avg_sq.Has(Encoding::kBFloat16);
}

/// ElementCount, after checking that the tile has the moments of the rule and no others.
template <typename Scalars>
uint64_t ElementCountOf(const OptimizerTile& tile) {
  const uint64_t n = ElementCount(tile);
  const Encoding encoding = HasBFloat16Moments(tile) ? Encoding::kBFloat16 : Encoding::kFloat32;
  const auto count = [](const PlaneView& moments, Encoding of) {
    return moments.Has(of) ? moments.size() : 0;
  };
  PENSTOCK_CHECK(
      count(tile.exp_avg, encoding) == (Rule<Scalars>::kExpAvg ? n : 0) &&
          count(tile.exp_avg_sq, encoding) == (Rule<Scalars>::kExpAvgSq ? n : 0) &&
          (tile.exp_avg.empty() || tile.exp_avg.Has(encoding)) &&
          (tile.exp_avg_sq.empty() || tile.exp_avg_sq.Has(encoding)),
      "{} first and {} second moments in fp32, {} and {} in bf16, for {} weights",
      count(tile.exp_avg, Encoding::kFloat32), count(tile.exp_avg_sq, Encoding::kFloat32),
      count(tile.exp_avg, Encoding::kBFloat16), count(tile.exp_avg_sq, Encoding::kBFloat16), n);
  return n;
}

}  // namespace penstock::kernels
