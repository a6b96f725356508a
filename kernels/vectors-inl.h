// Loads and stores of fp32 and 16-bit floats as vectors of fp32, whole or partial. Included once
// for each instruction set by the files with vector code, after highway.h.
//
// A loop is written once, as a callable that takes an index and how much of a vector is there:
// Whole, or Partial at the end of the row, whose missing lanes load as zeros and are not stored.
#if defined(PENSTOCK_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PENSTOCK_KERNELS_VECTORS_INL_H_
#undef PENSTOCK_KERNELS_VECTORS_INL_H_
#else
#define PENSTOCK_KERNELS_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using SignedWords = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using NativeHalves = hn::Rebind<hwy::float16_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

struct Whole {};
struct Partial {
  size_t count;
};

HWY_INLINE FloatVector Load(Whole, const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE FloatVector Load(Whole, const BFloat16* from) {
  const auto halves = hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), halves)));
}
HWY_INLINE FloatVector Load(Whole, const Float16* from) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(Floats(), ToFloat(*from));  // Highway's loses NaN
#else
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
  return hn::PromoteTo(Floats(), hn::LoadU(NativeHalves(), halves));
#endif
}

/// `rounded`, whose upper halves are the bfloat16, or a quiet NaN where `value` is NaN.
HWY_INLINE WordVector OrQuietNaN(FloatVector value, WordVector rounded) {
  const Words words;
  const auto quiet = hn::Or(hn::BitCast(words, value), hn::Set(words, 0x40'0000));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
}

/// RoundToBFloat16 of every lane, in its upper half.
HWY_INLINE WordVector RoundedToBFloat16(FloatVector value) {
  const Words words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  return OrQuietNaN(value, hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
}

/// RoundToBFloat16 of every lane. The narrowing saturates in Highway, but all values are in range.
HWY_INLINE hn::Vec<Halves> Narrow(FloatVector value, const BFloat16*) {
  const auto upper = hn::ShiftRight<16>(RoundedToBFloat16(value));
  return hn::DemoteTo(Halves(), hn::BitCast(SignedWords(), upper));
}
/// RoundToFloat16 of every lane.
HWY_INLINE hn::Vec<Halves> Narrow(FloatVector value, const Float16*) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(Halves(), RoundToFloat16(hn::GetLane(value)));  // Highway's rounds towards zero
#else
  return hn::BitCast(Halves(), hn::DemoteTo(NativeHalves(), value));
#endif
}

HWY_INLINE void Store(Whole, FloatVector value, float* to) { hn::StoreU(value, Floats(), to); }
template <typename Half>
HWY_INLINE void Store(Whole, FloatVector value, Half* to) {
  hn::StoreU(Narrow(value, to), Halves(), reinterpret_cast<uint16_t*>(to));
}

template <typename T>
HWY_INLINE FloatVector Load(Partial part, const T* from) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())] = {};
  std::memcpy(lanes, from, part.count * sizeof(T));
  return Load(Whole(), lanes);
}
template <typename T>
HWY_INLINE void Store(Partial part, FloatVector value, T* to) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())];
  Store(Whole(), value, lanes);
  std::memcpy(to, lanes, part.count * sizeof(T));
}

/// `value` where the row has elements, `other` in the lanes behind its end.
HWY_INLINE FloatVector OrElse(Whole, FloatVector value, FloatVector) { return value; }
HWY_INLINE FloatVector OrElse(Partial part, FloatVector value, FloatVector other) {
  return hn::IfThenElse(hn::FirstN(Floats(), part.count), value, other);
}
HWY_INLINE FloatVector OrZero(Whole, FloatVector value) { return value; }
HWY_INLINE FloatVector OrZero(Partial part, FloatVector value) {
  return hn::IfThenElseZero(hn::FirstN(Floats(), part.count), value);
}

/// body(index, Whole) for all whole vectors of [0, n), then body(index, Partial) for the rest.
template <typename Body>
HWY_INLINE void ForEachVector(size_t n, Body body) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole());
  if (i < n) body(i, Partial{n - i});
}

HWY_INLINE FloatVector Splat(float value) { return hn::Set(Floats(), value); }
HWY_INLINE float Sum(FloatVector value) { return hn::GetLane(hn::SumOfLanes(Floats(), value)); }

/// exp of values up to 88, and NaN of NaN (which Highway's Exp turns into 0).
HWY_INLINE FloatVector Exp(FloatVector x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Floats(), x));
}

/// Calls body with a null pointer to the element type that `dtype` is.
template <typename Body>
HWY_INLINE void WithType(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(static_cast<float*>(nullptr));
    case DType::kBFloat16:
      return body(static_cast<BFloat16*>(nullptr));
    case DType::kFloat16:
      return body(static_cast<Float16*>(nullptr));
  }
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
