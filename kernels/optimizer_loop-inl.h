// The loop of every rule over a tile, on vectors. Included once for each instruction set by the
// rules' files with vector code, after highway.h. Instruction sets without a fused multiply-add,
// and the elements that do not fill a vector, take the scalar reference.
#if defined(PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#undef PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#else
#define PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/optimizer_rule.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

// HWY_HAVE_FLOAT64 leaves out 32-bit Arm, whose vectors flush denormals and have no exact division.
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

using SignedHalves = hn::Rebind<int16_t, Floats>;
using WordVector = hn::Vec<Words>;

/// How far ahead the loop asks for its operands, into the second-level cache, as the processor
/// follows fewer streams than the loop has. Into the first level, or less far, is slower; figures
/// in docs/measurements.md.
constexpr size_t kPrefetchDistance = 2048;
HWY_INLINE void PrefetchAhead(const void* address) {
  constexpr int kRead = 0, kSecondLevel = 2;
  __builtin_prefetch(address, kRead, kSecondLevel);
}

class WholeWeights {
 public:
  explicit WholeWeights(const OptimizerTile& tile) : weight_(tile.weight.data()) {}
  HWY_INLINE FloatVector Read(size_t i) const { return Load(Whole(), weight_ + i); }
  HWY_INLINE void Prefetch(size_t i) const { PrefetchAhead(weight_ + i); }
  HWY_INLINE void Write(FloatVector w, size_t i) const { Store(Whole(), w, weight_ + i); }

 private:
  float* weight_;
};

HWY_INLINE BFloat16* CopyOf(const OptimizerTile& tile, BFloat16) { return tile.weight_bf16.data(); }
HWY_INLINE Float16* CopyOf(const OptimizerTile& tile, Float16) { return tile.weight_fp16.data(); }

/// A whole master and its rounded copy, which is written past the cache where it is aligned to its
/// vectors.
template <typename Half>
class CopiedWeights {
 public:
  explicit CopiedWeights(const OptimizerTile& tile)
      : whole_(tile),
        copy_(CopyOf(tile, Half())),
        aligned_(reinterpret_cast<uintptr_t>(copy_) % (hn::Lanes(Halves()) * sizeof(Half)) == 0) {}
  HWY_INLINE FloatVector Read(size_t i) const { return whole_.Read(i); }
  HWY_INLINE void Prefetch(size_t i) const { whole_.Prefetch(i); }
  HWY_INLINE void Write(FloatVector w, size_t i) const {
    whole_.Write(w, i);
    auto* const to = reinterpret_cast<uint16_t*>(copy_ + i);
    const auto rounded = Narrow(w, copy_);
    if (aligned_) {
      hn::Stream(rounded, Halves(), to);
    } else {
      hn::StoreU(rounded, Halves(), to);
    }
  }

 private:
  WholeWeights whole_;
  Half* copy_;
  bool aligned_;
};

/// Split and Join of kernels/dtype.h.
class SplitWeights {
 public:
  explicit SplitWeights(const OptimizerTile& tile)
      : hi_(tile.weight_hi.data()), lo_(tile.weight_lo.data()) {}

  HWY_INLINE FloatVector Read(size_t i) const {
    const auto hi = hn::BitCast(Words(), Load(Whole(), hi_ + i));
    const auto lo = hn::PromoteTo(SignedWords(), hn::LoadU(SignedHalves(), lo_ + i));
    return hn::BitCast(Floats(), hn::Add(hi, hn::BitCast(Words(), lo)));
  }

  HWY_INLINE void Prefetch(size_t i) const {
    PrefetchAhead(hi_ + i);
    PrefetchAhead(lo_ + i);
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

HWY_INLINE void StoreMoment(FloatVector value, WordVector, float* to) { Store(Whole(), value, to); }
/// RoundStochastically of every lane.
HWY_INLINE void StoreMoment(FloatVector value, WordVector random, BFloat16* to) {
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::BitCast(Words(), value), random));
  hn::StoreU(NarrowBFloat16(value, rounded), Halves(), reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE WordVector MixBitsOf(WordVector x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(Words(), 0x7feb352d));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(Words(), 0x846ca68b));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

/// RoundingBits of the elements from `first` on.
HWY_INLINE WordVector RoundingBitsFrom(uint64_t key, uint64_t first) {
  const auto elements = hn::Iota(Words(), static_cast<uint32_t>(first));
  const auto mixed = MixBitsOf(hn::Xor(elements, hn::Set(Words(), static_cast<uint32_t>(key))));
  return MixBitsOf(hn::Add(mixed, hn::Set(Words(), static_cast<uint32_t>(key >> 32))));
}

template <typename T>
struct MomentsAs {
  using Moment = T;
};

HWY_INLINE float* FirstMoment(const OptimizerTile& tile, MomentsAs<float>) {
  return tile.exp_avg.data();
}
HWY_INLINE BFloat16* FirstMoment(const OptimizerTile& tile, MomentsAs<BFloat16>) {
  return tile.exp_avg_bf16.data();
}
HWY_INLINE float* SecondMoment(const OptimizerTile& tile, MomentsAs<float>) {
  return tile.exp_avg_sq.data();
}
HWY_INLINE BFloat16* SecondMoment(const OptimizerTile& tile, MomentsAs<BFloat16>) {
  return tile.exp_avg_sq_bf16.data();
}

/// All whole vectors of the first n elements; returns how many elements that were.
/// `Direction()(scalars, g, m, v)` updates the moments that the rule has and returns what the
/// weight goes along.
template <typename Direction, typename Weights, typename Gradient, typename Moment, Decay kDecay,
          typename Scalars>
size_t UpdateVectors(const Scalars& scalars, const OptimizerTile& tile, size_t n) {
  const Floats d;
  const Scalars s = scalars;
  const StochasticRounding rounding = tile.rounding;
  const Weights weights(tile);
  const auto* const gradient = static_cast<const Gradient*>(tile.gradient);
  Moment* const exp_avg = FirstMoment(tile, MomentsAs<Moment>());
  Moment* const exp_avg_sq = SecondMoment(tile, MomentsAs<Moment>());
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; n - i >= lanes; i += lanes) {
    weights.Prefetch(i + kPrefetchDistance);
    PrefetchAhead(gradient + i + kPrefetchDistance);
    if constexpr (Rule<Scalars>::kExpAvg) PrefetchAhead(exp_avg + i + kPrefetchDistance);
    if constexpr (Rule<Scalars>::kExpAvgSq) PrefetchAhead(exp_avg_sq + i + kPrefetchDistance);
    auto w = weights.Read(i);
    auto g = hn::Mul(Load(Whole(), gradient + i), hn::Set(d, s.grad_scale));
    if constexpr (kDecay == Decay::kL2) g = hn::MulAdd(w, hn::Set(d, s.decay), g);
    auto m = hn::Zero(d), v = m;
    if constexpr (Rule<Scalars>::kExpAvg) m = Load(Whole(), exp_avg + i);
    if constexpr (Rule<Scalars>::kExpAvgSq) v = Load(Whole(), exp_avg_sq + i);
    const auto direction = Direction()(s, g, m, v);
    auto random = hn::Zero(Words());
    if constexpr (sizeof(Moment) == 2) {
      random = RoundingBitsFrom(rounding.key, rounding.first_element + i);
    }
    if constexpr (Rule<Scalars>::kExpAvg) {
      StoreMoment(m, hn::And(random, hn::Set(Words(), 0xffff)), exp_avg + i);
    }
    if constexpr (Rule<Scalars>::kExpAvgSq) {
      StoreMoment(v, hn::ShiftRight<16>(random), exp_avg_sq + i);
    }
    if constexpr (kDecay == Decay::kDecoupled) w = hn::MulAdd(w, hn::Set(d, s.decay), w);
    weights.Write(hn::MulAdd(direction, hn::Set(d, s.negative_step_size), w), i);
  }
  return i;
}

template <typename Direction, typename Weights, typename Gradient, typename Moment,
          typename Scalars>
size_t WithDecay(const Scalars& s, const OptimizerTile& tile, size_t n) {
  const Decay decay = Rule<Scalars>::DecayOf(s);
  if constexpr (Rule<Scalars>::kL2) {
    if (decay == Decay::kL2) {
      return UpdateVectors<Direction, Weights, Gradient, Moment, Decay::kL2>(s, tile, n);
    }
  }
  if constexpr (Rule<Scalars>::kDecoupled) {
    if (decay == Decay::kDecoupled) {
      return UpdateVectors<Direction, Weights, Gradient, Moment, Decay::kDecoupled>(s, tile, n);
    }
  }
  return UpdateVectors<Direction, Weights, Gradient, Moment, Decay::kNone>(s, tile, n);
}

template <typename Direction, typename Weights, typename Gradient, typename Scalars>
size_t WithMoments(const Scalars& s, const OptimizerTile& tile, size_t n) {
  return HasBFloat16Moments(tile) ? WithDecay<Direction, Weights, Gradient, BFloat16>(s, tile, n)
                                  : WithDecay<Direction, Weights, Gradient, float>(s, tile, n);
}

template <typename Direction, typename Weights, typename Scalars>
size_t WithGradient(const Scalars& s, const OptimizerTile& tile, size_t n) {
  switch (tile.gradient_dtype) {
    case DType::kBFloat16:
      return WithMoments<Direction, Weights, BFloat16>(s, tile, n);
    case DType::kFloat16:
      return WithMoments<Direction, Weights, Float16>(s, tile, n);
    case DType::kFloat32:
      break;
  }
  return WithMoments<Direction, Weights, float>(s, tile, n);
}

template <typename Direction, typename Scalars>
size_t WithWeights(const Scalars& s, const OptimizerTile& tile, size_t n) {
  if (tile.weight.empty()) return WithGradient<Direction, SplitWeights>(s, tile, n);
  if (!tile.weight_bf16.empty()) {
    return WithGradient<Direction, CopiedWeights<BFloat16>>(s, tile, n);
  }
  if (!tile.weight_fp16.empty()) {
    return WithGradient<Direction, CopiedWeights<Float16>>(s, tile, n);
  }
  return WithGradient<Direction, WholeWeights>(s, tile, n);
}

/// Updates all whole vectors of the tile; returns how many elements that were.
template <typename Direction, typename Scalars>
size_t UpdateWholeVectors(const Scalars& s, const OptimizerTile& tile) {
  const size_t done = WithWeights<Direction>(s, tile, ElementCountOf<Scalars>(tile));
  hwy::FlushStream();  // copies are there before whoever hears of it reads them
  return done;
}

#else

template <typename Direction, typename Scalars>
size_t UpdateWholeVectors(const Scalars&, const OptimizerTile&) {
  return 0;
}

#endif  // HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
