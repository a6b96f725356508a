// The fused Adam step on vectors: this file is compiled once for each instruction set that has a
// fused multiply-add; the rest, and the elements that do not fill a vector, take the scalar
// reference.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam_simd.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kernels/adam.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

// HWY_HAVE_FLOAT64 leaves out 32-bit Arm, whose vectors flush denormals and have no exact division.
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

using SignedHalves = hn::Rebind<int16_t, Floats>;

enum class Decay { kNone, kL2, kAdamW };

class WholeWeights {
 public:
  explicit WholeWeights(const AdamTile& tile) : weight_(tile.weight.data()) {}
  HWY_INLINE FloatVector Read(size_t i) const { return Load(Whole(), weight_ + i); }
  HWY_INLINE void Write(FloatVector w, size_t i) const { Store(Whole(), w, weight_ + i); }

 private:
  float* weight_;
};

/// Split and Join of kernels/dtype.h.
class SplitWeights {
 public:
  explicit SplitWeights(const AdamTile& tile)
      : hi_(tile.weight_hi.data()), lo_(tile.weight_lo.data()) {}

  HWY_INLINE FloatVector Read(size_t i) const {
    const auto hi = hn::BitCast(Words(), Load(Whole(), hi_ + i));
    const auto lo = hn::PromoteTo(SignedWords(), hn::LoadU(SignedHalves(), lo_ + i));
    return hn::BitCast(Floats(), hn::Add(hi, hn::BitCast(Words(), lo)));
  }

  /// The narrowing saturates in Highway; both values are in range, so that it only narrows.
  HWY_INLINE void Write(FloatVector w, size_t i) const {
    const auto bits = hn::BitCast(Words(), w);
    const auto hi = hn::ShiftRight<16>(hn::Add(bits, hn::Set(Words(), 0x8000)));
    const auto lo = hn::Sub(bits, hn::ShiftLeft<16>(hi));
    hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(SignedWords(), hi)), Halves(),
               reinterpret_cast<uint16_t*>(hi_ + i));
    hn::StoreU(hn::DemoteTo(SignedHalves(), hn::BitCast(SignedWords(), lo)), SignedHalves(),
               lo_ + i);
  }

 private:
  BFloat16* hi_;
  int16_t* lo_;
};

/// All whole vectors of the tile; returns how many elements that were.
template <Decay kDecay, typename Weights, typename Gradient>
size_t UpdateVectors(const AdamScalars& s, const AdamTile& tile) {
  const Floats d;
  const Weights weights(tile);
  const auto* const gradient = static_cast<const Gradient*>(tile.gradient);
  float* const exp_avg = tile.exp_avg.data();
  float* const exp_avg_sq = tile.exp_avg_sq.data();
  const auto beta1 = hn::Set(d, s.beta1), one_minus_beta1 = hn::Set(d, s.one_minus_beta1);
  const auto beta2 = hn::Set(d, s.beta2), one_minus_beta2 = hn::Set(d, s.one_minus_beta2);
  const auto eps = hn::Set(d, s.eps), rsqrt_bias2 = hn::Set(d, s.rsqrt_bias2);
  const auto step_size = hn::Set(d, s.negative_step_size), decay = hn::Set(d, s.decay);
  const auto grad_scale = hn::Set(d, s.grad_scale);

  const size_t n = tile.exp_avg.size();
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; n - i >= lanes; i += lanes) {
    auto w = weights.Read(i);
    auto g = hn::Mul(Load(Whole(), gradient + i), grad_scale);
    if constexpr (kDecay == Decay::kL2) g = hn::MulAdd(w, decay, g);
    auto m = hn::Mul(hn::LoadU(d, exp_avg + i), beta1);
    m = hn::MulAdd(g, one_minus_beta1, m);
    auto v = hn::Mul(hn::LoadU(d, exp_avg_sq + i), beta2);
    v = hn::MulAdd(hn::Mul(g, g), one_minus_beta2, v);
    hn::StoreU(m, d, exp_avg + i);
    hn::StoreU(v, d, exp_avg_sq + i);
    const auto direction = hn::Div(m, hn::MulAdd(hn::Sqrt(v), rsqrt_bias2, eps));
    if constexpr (kDecay == Decay::kAdamW) w = hn::MulAdd(w, decay, w);
    weights.Write(hn::MulAdd(direction, step_size, w), i);
  }
  return i;
}

template <typename Weights, typename Gradient>
size_t UpdateWithDecay(const AdamScalars& s, const AdamTile& tile) {
  if (s.decay == 0) return UpdateVectors<Decay::kNone, Weights, Gradient>(s, tile);
  if (s.adam_w_mode) return UpdateVectors<Decay::kAdamW, Weights, Gradient>(s, tile);
  return UpdateVectors<Decay::kL2, Weights, Gradient>(s, tile);
}

template <typename Weights>
size_t UpdateWeights(const AdamScalars& s, const AdamTile& tile) {
  return tile.gradient_dtype == DType::kBFloat16 ? UpdateWithDecay<Weights, BFloat16>(s, tile)
                                                 : UpdateWithDecay<Weights, float>(s, tile);
}

void UpdateTile(const AdamScalars& scalars, const AdamTile& tile) {
  const uint64_t n = ElementCount(tile);
  const size_t done = tile.weight.empty() ? UpdateWeights<SplitWeights>(scalars, tile)
                                          : UpdateWeights<WholeWeights>(scalars, tile);
  if (done < n) AdamUpdateReference(scalars, Part(tile, done, n - done));
}

#else

void UpdateTile(const AdamScalars& scalars, const AdamTile& tile) {
  AdamUpdateReference(scalars, tile);
}

#endif  // HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {
namespace {

HWY_EXPORT(UpdateTile);

struct Targets {
  std::vector<int64_t> bits;
  std::vector<const char*> names;
};

const Targets& AvailableTargets() {
  static const Targets targets = [] {
    Targets found{.bits = hwy::SupportedAndGeneratedTargets()};
    for (const int64_t bit : found.bits) found.names.push_back(hwy::TargetName(bit));
    return found;
  }();
  return targets;
}

/// Where Highway's dispatch table has the function for `target`.
size_t TableIndex(int64_t target) {
  if constexpr (std::size(HWY_DISPATCH_TABLE(UpdateTile)) == 1) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace

void AdamUpdate(const AdamScalars& scalars, const AdamTile& tile) {
  HWY_DYNAMIC_DISPATCH(UpdateTile)(scalars, tile);
}

std::span<const char* const> AdamTargets() { return AvailableTargets().names; }

void AdamUpdateOn(const char* target, const AdamScalars& scalars, const AdamTile& tile) {
  const Targets& targets = AvailableTargets();
  for (size_t i = 0; i < targets.names.size(); ++i) {
    if (std::string_view(target) != targets.names[i]) continue;
    HWY_DISPATCH_TABLE(UpdateTile)[TableIndex(targets.bits[i])](scalars, tile);
    return;
  }
  PENSTOCK_CHECK(false, "no instruction set {} here", target);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
