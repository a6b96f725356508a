// Sums of squares: the scalar reference, and one source for all instruction sets.
#include "kernels/state/block_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/block_sums.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

namespace hn = hwy::HWY_NAMESPACE;

// Four accumulators of at most four lanes are the 16 partial sums. Their additions depend on each
// other, so that wider vectors would wait for as long.
using Doubles = hn::CappedTag<double, 4>;

/// The elements of a gradient. `Magnitude` holds one without its sign: as a whole number, it is
/// larger for a larger magnitude, and from `kInfinity` on it is not finite.
struct FloatElements {
  using Magnitude = uint32_t;
  static constexpr Magnitude kInfinity = 0x7f80'0000;
  static float ToValue(Magnitude bits) { return std::bit_cast<float>(bits); }
  const float* from;
  HWY_INLINE hn::Vec<Doubles> Load(size_t i) const {
    const hn::Rebind<float, Doubles> d;
    return hn::PromoteTo(Doubles(), hn::LoadU(d, from + i));
  }
};

struct BFloat16Elements {
  using Magnitude = uint16_t;
  static constexpr Magnitude kInfinity = 0x7f80;
  static float ToValue(Magnitude bits) { return ToFloat(BFloat16{bits}); }
  const uint16_t* from;
  HWY_INLINE hn::Vec<Doubles> Load(size_t i) const {
    const hn::Rebind<uint16_t, Doubles> d16;
    const hn::Rebind<uint32_t, Doubles> d32;
    const hn::Rebind<float, Doubles> df;
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from + i)));
    return hn::PromoteTo(Doubles(), hn::BitCast(df, bits));
  }
};

struct Float16Elements {
  using Magnitude = uint16_t;
  static constexpr Magnitude kInfinity = 0x7c00;
  static float ToValue(Magnitude bits) { return Float16ToFloat(bits); }
  const hwy::float16_t* from;
  HWY_INLINE hn::Vec<Doubles> Load(size_t i) const {
    const hn::Rebind<hwy::float16_t, Doubles> d16;
    const hn::Rebind<float, Doubles> df;
    return hn::PromoteTo(Doubles(), hn::PromoteTo(df, hn::LoadU(d16, from + i)));
  }
};

/// Vectors of magnitudes of at most 16 elements.
template <typename Elements>
using Magnitudes = hn::CappedTag<typename Elements::Magnitude, 16>;

template <typename Magnitude>
constexpr Magnitude kWithoutSign = std::numeric_limits<Magnitude>::max() >> 1;

/// `largest`, or the magnitudes of elements i to i + 15 where they are larger.
template <typename Elements>
HWY_INLINE hn::Vec<Magnitudes<Elements>> Larger(hn::Vec<Magnitudes<Elements>> largest,
                                                Elements elements, size_t i) {
  using Magnitude = typename Elements::Magnitude;
  const Magnitudes<Elements> d;
  const auto unsigned_bits = hn::Set(d, kWithoutSign<Magnitude>);
  const auto* const bits = reinterpret_cast<const Magnitude*>(elements.from) + i;
  for (size_t j = 0; j < 16; j += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, bits + j), unsigned_bits));
  }
  return largest;
}

template <typename Elements>
typename Elements::Magnitude LargestOf(hn::Vec<Magnitudes<Elements>> largest) {
  const Magnitudes<Elements> d;
  HWY_ALIGN typename Elements::Magnitude lanes[16] = {};
  hn::StoreU(largest, d, lanes);
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

/// The 16 partial sums of the block that begins at element `begin`. Vectors of fewer than four
/// lanes go through the block more than once, which is in the first-level cache by then. Returns
/// the largest magnitude if kFigures is set, else 0.
template <bool kFigures, typename Elements>
typename Elements::Magnitude PartialSums(Elements elements, size_t begin, double* partial) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(Magnitudes<Elements>());
  for (size_t first = 0; first < 16; first += 4 * lanes) {
    auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (size_t i = begin + first; i < begin + kBlockElements; i += 16) {
      const auto x0 = elements.Load(i), x1 = elements.Load(i + lanes);
      const auto x2 = elements.Load(i + 2 * lanes), x3 = elements.Load(i + 3 * lanes);
      sum0 = hn::MulAdd(x0, x0, sum0);
      sum1 = hn::MulAdd(x1, x1, sum1);
      sum2 = hn::MulAdd(x2, x2, sum2);
      sum3 = hn::MulAdd(x3, x3, sum3);
      if (kFigures && first == 0) largest = Larger(largest, elements, i);
    }
    hn::StoreU(sum0, d, partial + first);
    hn::StoreU(sum1, d, partial + first + lanes);
    hn::StoreU(sum2, d, partial + first + 2 * lanes);
    hn::StoreU(sum3, d, partial + first + 3 * lanes);
  }
  return kFigures ? LargestOf<Elements>(largest) : 0;
}

/// Handles a block with non-finite elements, which is rare, one element after the other.
template <typename Elements>
void CountNonFinite(Elements elements, size_t begin, float* largest, uint32_t* nonfinite) {
  using Magnitude = typename Elements::Magnitude;
  Magnitude most = 0;
  *nonfinite = 0;
  for (size_t i = begin; i < begin + kBlockElements; ++i) {
    Magnitude bits;
    std::memcpy(&bits, reinterpret_cast<const std::byte*>(elements.from) + i * sizeof(bits),
                sizeof(bits));
    bits &= kWithoutSign<Magnitude>;
    if (bits >= Elements::kInfinity) {
      ++*nonfinite;
    } else {
      most = std::max(most, bits);
    }
  }
  *largest = Elements::ToValue(most);
}

template <bool kFigures, typename Elements>
bool SumBlocks(Elements elements, const BlockFigures& figures) {
  bool finite = true;
  double partial[16];
  for (size_t block = 0; block < figures.sums.size(); ++block) {
    const size_t begin = block * kBlockElements;
    const auto largest = PartialSums<kFigures>(elements, begin, partial);
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t j = 0; j < width; ++j) partial[j] += partial[j + width];
    }
    figures.sums[block] = partial[0];
    // Squares are not negative and their sum cannot overflow: it is finite when all elements are.
    finite &= std::isfinite(partial[0]);
    if constexpr (kFigures) {
      figures.largest[block] = Elements::ToValue(largest);
      figures.nonfinite[block] = 0;
      if (largest >= Elements::kInfinity) {
        CountNonFinite(elements, begin, &figures.largest[block], &figures.nonfinite[block]);
      }
    }
  }
  return finite;
}

template <bool kFigures>
bool SumElements(const void* gradient, DType dtype, const BlockFigures& figures) {
  switch (dtype) {
    case DType::kBFloat16:
      return SumBlocks<kFigures>(BFloat16Elements{static_cast<const uint16_t*>(gradient)}, figures);
    case DType::kFloat16:
      return SumBlocks<kFigures>(Float16Elements{static_cast<const hwy::float16_t*>(gradient)},
                                 figures);
    case DType::kFloat32:
      break;
  }
  return SumBlocks<kFigures>(FloatElements{static_cast<const float*>(gradient)}, figures);
}

/// Without lists of the other figures, computes only the sums.
bool SumTile(const void* gradient, DType dtype, const BlockFigures& figures) {
  return figures.largest.empty() ? SumElements<false>(gradient, dtype, figures)
                                 : SumElements<true>(gradient, dtype, figures);
}

#else

bool SumTile(const void* gradient, DType dtype, const BlockFigures& figures) {
  const uint64_t elements = figures.sums.size() * kBlockElements;
  return figures.largest.empty() ? BlockSumsReference(gradient, dtype, elements, figures.sums)
                                 : BlockSumsAndFiguresReference(gradient, dtype, elements, figures);
}

#endif  // HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {
namespace {

HWY_EXPORT(SumTile);

void CheckArguments(const void* gradient, uint64_t elements, std::span<const double> sums) {
  PENSTOCK_CHECK(elements % kBlockElements == 0, "{} elements are no whole blocks", elements);
  PENSTOCK_CHECK(sums.size() == elements / kBlockElements, "{} sums for {} elements", sums.size(),
                 elements);
  PENSTOCK_CHECK(gradient != nullptr || elements == 0, "{} elements without a gradient", elements);
}

void CheckArguments(const void* gradient, uint64_t elements, const BlockFigures& figures) {
  CheckArguments(gradient, elements, figures.sums);
  PENSTOCK_CHECK(figures.largest.size() == figures.sums.size() &&
                     figures.nonfinite.size() == figures.sums.size(),
                 "{} largest and {} counts for {} sums", figures.largest.size(),
                 figures.nonfinite.size(), figures.sums.size());
}

/// Element i as binary32.
float LoadElement(const void* gradient, DType dtype, uint64_t i) {
  const auto* bytes = static_cast<const std::byte*>(gradient) + i * SizeOf(dtype).value;
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == DType::kBFloat16 ? ToFloat(BFloat16{bits}) : Float16ToFloat(bits);
}

}  // namespace

bool BlockSums(const void* gradient, DType dtype, uint64_t elements, std::span<double> sums) {
  CheckArguments(gradient, elements, sums);
  return HWY_DYNAMIC_DISPATCH(SumTile)(gradient, dtype, {.sums = sums});
}

bool BlockSumsAndFigures(const void* gradient, DType dtype, uint64_t elements,
                         const BlockFigures& figures) {
  CheckArguments(gradient, elements, figures);
  return HWY_DYNAMIC_DISPATCH(SumTile)(gradient, dtype, figures);
}

GradientFigures PartFigures(const void* gradient, DType dtype, uint64_t elements) {
  PENSTOCK_CHECK(elements <= kBlockElements, "{} elements are no part of a block", elements);
  alignas(64) std::array<std::byte, kBlockElements * sizeof(float)> block{};
  if (elements > 0) std::memcpy(block.data(), gradient, elements * SizeOf(dtype).value);
  GradientFigures part;
  uint32_t nonfinite = 0;
  BlockSumsAndFigures(block.data(), dtype, kBlockElements,
                      {.sums = {&part.sum_of_squares, 1},
                       .largest = {&part.largest, 1},
                       .nonfinite = {&nonfinite, 1}});
  part.nonfinite = nonfinite;
  return part;
}

bool BlockSumsReference(const void* gradient, DType dtype, uint64_t elements,
                        std::span<double> sums) {
  CheckArguments(gradient, elements, sums);
  bool finite = true;
  for (uint64_t block = 0; block < sums.size(); ++block) {
    std::array<double, 16> partial{};
    for (uint64_t i = 0; i < kBlockElements; ++i) {
      const double x = LoadElement(gradient, dtype, block * kBlockElements + i);
      finite &= std::isfinite(x);
      partial[i % 16] += x * x;
    }
    for (const size_t width : {8, 4, 2, 1}) {
      for (size_t j = 0; j < width; ++j) partial[j] += partial[j + width];
    }
    sums[block] = partial[0];
  }
  return finite;
}

bool BlockSumsAndFiguresReference(const void* gradient, DType dtype, uint64_t elements,
                                  const BlockFigures& figures) {
  CheckArguments(gradient, elements, figures);
  for (uint64_t block = 0; block < figures.sums.size(); ++block) {
    float largest = 0;
    uint32_t nonfinite = 0;
    for (uint64_t i = 0; i < kBlockElements; ++i) {
      const float x = LoadElement(gradient, dtype, block * kBlockElements + i);
      if (!std::isfinite(x)) {
        ++nonfinite;
      } else {
        largest = std::max(largest, std::abs(x));
      }
    }
    figures.largest[block] = largest;
    figures.nonfinite[block] = nonfinite;
  }
  return BlockSumsReference(gradient, dtype, elements, figures.sums);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
