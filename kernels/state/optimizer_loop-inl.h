// The loop of every rule over a tile, on vectors. Included once for each instruction set by the
// rules' files with vector code, after highway.h. Instruction sets without a fused multiply-add,
// and the elements that do not fill a line (kLineElements, or two vectors), take the scalar
// reference.
#if defined(PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#undef PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#else
#define PENSTOCK_KERNELS_OPTIMIZER_LOOP_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/state/figures.h"
#include "kernels/state/optimizer_rule.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

// HWY_HAVE_FLOAT64 leaves out 32-bit Arm, whose vectors flush denormals and have no exact division.
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

using SignedHalves = hn::Rebind<int16_t, Floats>;
/// 16-bit values of two vectors of Words: the loop takes vectors by twos, so that planes of 16 bits
/// are written in whole vectors as well.
using PairOfHalves = hn::Repartition<uint16_t, Words>;

HWY_INLINE hn::Vec<PairOfHalves> LowerHalves(WordVector a, WordVector b) {
  const PairOfHalves d;
  return hn::ConcatEven(d, hn::BitCast(d, b), hn::BitCast(d, a));
}
HWY_INLINE hn::Vec<PairOfHalves> UpperHalves(WordVector a, WordVector b) {
  const PairOfHalves d;
  return hn::ConcatOdd(d, hn::BitCast(d, b), hn::BitCast(d, a));
}

/// How far ahead the loop asks for its operands, into the second-level cache, as the processor
/// follows fewer streams than the loop has; figures in docs/measurements.md.
constexpr size_t kPrefetchDistance = 2048;
/// Elements of 16 bits in a cache line, to which one request suffices.
constexpr size_t kLineElements = 32;

/// Asks for the `count` elements that lie kPrefetchDistance behind the first of `plane`.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* plane, size_t count) {
  constexpr int kRead = 0, kSecondLevel = 2;
  for (size_t i = 0; i < count; i += kLineElements * sizeof(uint16_t) / sizeof(T)) {
    __builtin_prefetch(plane + kPrefetchDistance + i, kRead, kSecondLevel);
  }
}

class WholeWeights {
 public:
  explicit WholeWeights(const OptimizerTile& tile) : weight_(WholeMaster(tile).As<float>()) {}
  HWY_INLINE FloatVector Read(size_t i) const { return Load(Whole(), weight_ + i); }
  HWY_INLINE void Prefetch(size_t i, size_t count) const { PrefetchAhead(weight_ + i, count); }
  HWY_INLINE void Write(FloatVector a, FloatVector b, size_t i) const {
    Store(Whole(), a, weight_ + i);
    Store(Whole(), b, weight_ + i + hn::Lanes(Floats()));
  }

 private:
  float* weight_;
};

HWY_INLINE hn::Vec<PairOfHalves> NarrowPair(FloatVector a, FloatVector b, const BFloat16*) {
  return UpperHalves(RoundedToBFloat16(a), RoundedToBFloat16(b));
}
HWY_INLINE hn::Vec<PairOfHalves> NarrowPair(FloatVector a, FloatVector b, const Float16* to) {
  return hn::Combine(PairOfHalves(), Narrow(b, to), Narrow(a, to));
}

/// A whole master and its rounded copy, which is written past the cache where it is aligned to its
/// vectors.
template <typename Half>
class CopiedWeights {
 public:
  explicit CopiedWeights(const OptimizerTile& tile)
      : whole_(tile),
        copy_(tile.weight.As<Half>()),
        aligned_(reinterpret_cast<uintptr_t>(copy_) % (hn::Lanes(PairOfHalves()) * sizeof(Half)) ==
                 0) {}
  HWY_INLINE FloatVector Read(size_t i) const { return whole_.Read(i); }
  HWY_INLINE void Prefetch(size_t i, size_t count) const { whole_.Prefetch(i, count); }
  HWY_INLINE void Write(FloatVector a, FloatVector b, size_t i) const {
    whole_.Write(a, b, i);
    auto* const to = reinterpret_cast<uint16_t*>(copy_ + i);
    const auto rounded = NarrowPair(a, b, copy_);
    if (aligned_) {
      hn::Stream(rounded, PairOfHalves(), to);
    } else {
      hn::StoreU(rounded, PairOfHalves(), to);
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
      : hi_(tile.weight.As<BFloat16>()), lo_(tile.lo.As<int16_t>()) {}

  HWY_INLINE FloatVector Read(size_t i) const {
    const auto hi = hn::BitCast(Words(), Load(Whole(), hi_ + i));
    const auto lo = hn::PromoteTo(SignedWords(), hn::LoadU(SignedHalves(), lo_ + i));
    return hn::BitCast(Floats(), hn::Add(hi, hn::BitCast(Words(), lo)));
  }

  HWY_INLINE void Prefetch(size_t i, size_t count) const {
    PrefetchAhead(hi_ + i, count);
    PrefetchAhead(lo_ + i, count);
  }

  /// lo is what hi lacks, modulo 2^16: the lower half as it is.
  HWY_INLINE void Write(FloatVector a, FloatVector b, size_t i) const {
    const auto bits_a = hn::BitCast(Words(), a), bits_b = hn::BitCast(Words(), b);
    const auto half = hn::Set(Words(), 0x8000);
    const auto hi = UpperHalves(hn::Add(bits_a, half), hn::Add(bits_b, half));
    hn::StoreU(hi, PairOfHalves(), reinterpret_cast<uint16_t*>(hi_ + i));
    hn::StoreU(LowerHalves(bits_a, bits_b), PairOfHalves(), reinterpret_cast<uint16_t*>(lo_ + i));
  }

 private:
  BFloat16* hi_;
  int16_t* lo_;
};

HWY_INLINE void StoreMoments(FloatVector a, FloatVector b, WordVector, WordVector, float* to) {
  Store(Whole(), a, to);
  Store(Whole(), b, to + hn::Lanes(Floats()));
}
/// RoundStochastically of every lane.
HWY_INLINE void StoreMoments(FloatVector a, FloatVector b, WordVector random_a, WordVector random_b,
                             BFloat16* to) {
  const auto rounded_a = OrQuietNaN(a, hn::Add(hn::BitCast(Words(), a), random_a));
  const auto rounded_b = OrQuietNaN(b, hn::Add(hn::BitCast(Words(), b), random_b));
  hn::StoreU(UpperHalves(rounded_a, rounded_b), PairOfHalves(), reinterpret_cast<uint16_t*>(to));
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

/// The rule on one vector. `Direction()(scalars, g, m, v)` updates the moments that the rule has
/// and returns what the weight goes along.
template <typename Direction, Decay kDecay, typename Scalars>
HWY_INLINE void UpdateVector(const Scalars& s, FloatVector g, FloatVector& w, FloatVector& m,
                             FloatVector& v) {
  const Floats d;
  g = hn::Mul(g, hn::Set(d, s.grad_scale));
  if constexpr (kDecay == Decay::kL2) g = hn::MulAdd(w, hn::Set(d, s.decay), g);
  auto direction = Direction()(s, g, m, v);
  if constexpr (kDecay == Decay::kInUpdate)
    direction = hn::MulAdd(w, hn::Set(d, s.decay), direction);
  if constexpr (kDecay == Decay::kDecoupled) w = hn::MulAdd(w, hn::Set(d, s.decay), w);
  w = hn::MulAdd(direction, hn::Set(d, s.negative_step_size), w);
}

/// Adds the figures of a vector of weights.
HWY_INLINE void Measure(FloatVector before, FloatVector after, FloatVector& squares,
                        FloatVector& update_squares, WordVector& largest) {
  const auto update = hn::Sub(after, before);
  squares = hn::MulAdd(after, after, squares);
  update_squares = hn::MulAdd(update, update, update_squares);
  const auto magnitude = hn::And(hn::BitCast(Words(), after), hn::Set(Words(), 0x7fff'ffff));
  largest = hn::Max(largest, magnitude);
}

HWY_INLINE WeightFigures FiguresOf(FloatVector squares, FloatVector update_squares,
                                   WordVector largest) {
  HWY_ALIGN uint32_t lanes[hn::MaxLanes(Words())] = {};
  hn::Store(largest, Words(), lanes);
  uint32_t most = 0;
  for (size_t i = 0; i < hn::Lanes(Words()); ++i) most = HWY_MAX(most, lanes[i]);
  return {.sum_of_squares = Sum(squares),
          .update_sum_of_squares = Sum(update_squares),
          .largest = std::bit_cast<float>(most)};
}

/// The planes of a tile.
template <typename Weights, typename Gradient, typename Moment, typename Scalars>
class Planes {
 public:
  explicit Planes(const OptimizerTile& tile)
      : weights_(tile),
        gradient_(static_cast<const Gradient*>(tile.gradient)),
        exp_avg_(tile.exp_avg.As<Moment>()),
        exp_avg_sq_(tile.exp_avg_sq.As<Moment>()),
        rounding_(tile.rounding) {}

  HWY_INLINE void Prefetch(size_t first, size_t count) const {
    weights_.Prefetch(first, count);
    PrefetchAhead(gradient_ + first, count);
    if constexpr (kExpAvg) PrefetchAhead(exp_avg_ + first, count);
    if constexpr (kExpAvgSq) PrefetchAhead(exp_avg_sq_ + first, count);
  }

  /// The vector that begins at element a, and the one behind it. The figures of both are added to
  /// the last three.
  template <typename Direction, Decay kDecay>
  HWY_INLINE void UpdatePair(const Scalars& s, size_t a, FloatVector& squares,
                             FloatVector& update_squares, WordVector& largest) const {
    const Floats d;
    const size_t b = a + hn::Lanes(d);
    auto w_a = weights_.Read(a), w_b = weights_.Read(b);
    const auto old_a = w_a, old_b = w_b;
    auto m_a = hn::Zero(d), m_b = m_a, v_a = m_a, v_b = m_a;
    if constexpr (kExpAvg) {
      m_a = Load(Whole(), exp_avg_ + a);
      m_b = Load(Whole(), exp_avg_ + b);
    }
    if constexpr (kExpAvgSq) {
      v_a = Load(Whole(), exp_avg_sq_ + a);
      v_b = Load(Whole(), exp_avg_sq_ + b);
    }
    UpdateVector<Direction, kDecay>(s, Load(Whole(), gradient_ + a), w_a, m_a, v_a);
    UpdateVector<Direction, kDecay>(s, Load(Whole(), gradient_ + b), w_b, m_b, v_b);
    auto random_a = hn::Zero(Words()), random_b = random_a;
    if constexpr (sizeof(Moment) == 2) {
      random_a = RoundingBitsFrom(rounding_.key, rounding_.first_element + a);
      random_b = RoundingBitsFrom(rounding_.key, rounding_.first_element + b);
    }
    if constexpr (kExpAvg) {
      const auto lower = hn::Set(Words(), 0xffff);
      StoreMoments(m_a, m_b, hn::And(random_a, lower), hn::And(random_b, lower), exp_avg_ + a);
    }
    if constexpr (kExpAvgSq) {
      StoreMoments(v_a, v_b, hn::ShiftRight<16>(random_a), hn::ShiftRight<16>(random_b),
                   exp_avg_sq_ + a);
    }
    weights_.Write(w_a, w_b, a);
    Measure(old_a, w_a, squares, update_squares, largest);
    Measure(old_b, w_b, squares, update_squares, largest);
  }

 private:
  static constexpr bool kExpAvg = Rule<Scalars>::kExpAvg;
  static constexpr bool kExpAvgSq = Rule<Scalars>::kExpAvgSq;

  Weights weights_;
  const Gradient* gradient_;
  Moment* exp_avg_;
  Moment* exp_avg_sq_;
  StochasticRounding rounding_;
};

/// The whole lines of elements begin … end - 1; returns where the last one ends. A function of its
/// own, whose loop has all registers for its scalars and sums.
template <typename Direction, Decay kDecay, typename Planes, typename Scalars>
HWY_NOINLINE size_t UpdateBlock(const Scalars& scalars, const Planes& planes_of_tile, size_t begin,
                                size_t end, WeightFigures* figures) {
  const Scalars s = scalars;  // a copy that writes through the planes' pointers cannot change
  const Planes planes = planes_of_tile;
  const size_t pair = 2 * hn::Lanes(Floats());
  const size_t line = HWY_MAX(kLineElements, pair);
  // The update is bound by memory: that the figures are always made costs little.
  auto squares = hn::Zero(Floats()), update_squares = squares;
  auto largest = hn::Zero(Words());
  size_t done = begin;
  for (; end - done >= line; done += line) {
    planes.Prefetch(done, line);
    for (size_t i = 0; i < line; i += pair) {  // the compiler knows the number of iterations
      planes.template UpdatePair<Direction, kDecay>(s, done + i, squares, update_squares, largest);
    }
  }
  if (figures != nullptr) *figures = FiguresOf(squares, update_squares, largest);
  return done;
}

/// All whole lines of the first n elements; returns how many elements that were.
template <typename Direction, typename Weights, typename Gradient, typename Moment, Decay kDecay,
          typename Scalars>
size_t UpdateLines(const Scalars& scalars, const OptimizerTile& tile, size_t n,
                   WeightFigures* of_blocks) {
  const Planes<Weights, Gradient, Moment, Scalars> planes(tile);
  const size_t line = HWY_MAX(kLineElements, 2 * hn::Lanes(Floats()));
  size_t done = 0;
  while (n - done >= line) {
    WeightFigures* const figures =
        of_blocks == nullptr ? nullptr : of_blocks + done / kBlockElements;
    done = UpdateBlock<Direction, kDecay>(scalars, planes, done, HWY_MIN(n, done + kBlockElements),
                                          figures);
  }
  return done;
}

template <typename Direction, typename Weights, typename Gradient, typename Moment,
          typename Scalars>
size_t WithDecay(const Scalars& s, const OptimizerTile& tile, size_t n, WeightFigures* of_blocks) {
  const Decay decay = Rule<Scalars>::DecayOf(s);
  if constexpr (Rule<Scalars>::kL2) {
    if (decay == Decay::kL2) {
      return UpdateLines<Direction, Weights, Gradient, Moment, Decay::kL2>(s, tile, n, of_blocks);
    }
  }
  if constexpr (Rule<Scalars>::kDecoupled) {
    if (decay == Decay::kDecoupled) {
      return UpdateLines<Direction, Weights, Gradient, Moment, Decay::kDecoupled>(s, tile, n,
                                                                                  of_blocks);
    }
  }
  if constexpr (Rule<Scalars>::kInUpdate) {
    if (decay == Decay::kInUpdate) {
      return UpdateLines<Direction, Weights, Gradient, Moment, Decay::kInUpdate>(s, tile, n,
                                                                                 of_blocks);
    }
  }
  return UpdateLines<Direction, Weights, Gradient, Moment, Decay::kNone>(s, tile, n, of_blocks);
}

template <typename Direction, typename Weights, typename Gradient, typename Scalars>
size_t WithMoments(const Scalars& s, const OptimizerTile& tile, size_t n,
                   WeightFigures* of_blocks) {
  return HasBFloat16Moments(tile)
             ? WithDecay<Direction, Weights, Gradient, BFloat16>(s, tile, n, of_blocks)
             : WithDecay<Direction, Weights, Gradient, float>(s, tile, n, of_blocks);
}

template <typename Direction, typename Weights, typename Scalars>
size_t WithGradient(const Scalars& s, const OptimizerTile& tile, size_t n,
                    WeightFigures* of_blocks) {
  switch (tile.gradient_dtype) {
    case DType::kBFloat16:
      return WithMoments<Direction, Weights, BFloat16>(s, tile, n, of_blocks);
    case DType::kFloat16:
      return WithMoments<Direction, Weights, Float16>(s, tile, n, of_blocks);
    case DType::kFloat32:
      break;
  }
  return WithMoments<Direction, Weights, float>(s, tile, n, of_blocks);
}

template <typename Direction, typename Scalars>
size_t WithWeights(const Scalars& s, const OptimizerTile& tile, size_t n,
                   WeightFigures* of_blocks) {
  if (!tile.lo.empty()) return WithGradient<Direction, SplitWeights>(s, tile, n, of_blocks);
  if (tile.weight.Has(Encoding::kBFloat16)) {
    return WithGradient<Direction, CopiedWeights<BFloat16>>(s, tile, n, of_blocks);
  }
  if (tile.weight.Has(Encoding::kFloat16)) {
    return WithGradient<Direction, CopiedWeights<Float16>>(s, tile, n, of_blocks);
  }
  return WithGradient<Direction, WholeWeights>(s, tile, n, of_blocks);
}

/// Updates all whole lines of the tile; returns how many elements that were. Writes the figures of
/// each block that has a whole line, of these lines alone, unless `of_blocks` is null.
template <typename Direction, typename Scalars>
size_t UpdateWholeLines(const Scalars& s, const OptimizerTile& tile, WeightFigures* of_blocks) {
  const size_t done = WithWeights<Direction>(s, tile, ElementCountOf<Scalars>(tile), of_blocks);
  hwy::FlushStream();  // makes copies visible before readers are notified
  return done;
}

#else

template <typename Direction, typename Scalars>
size_t UpdateWholeLines(const Scalars&, const OptimizerTile&, WeightFigures*) {
  return 0;
}

#endif  // HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
