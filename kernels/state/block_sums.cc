// Sums of squares: the scalar reference, and one source for all instruction sets.
#include "kernels/state/block_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/block_sums.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

namespace hn = hwy::HWY_NAMESPACE;

// Four accumulators of at most four lanes are the 16 partial sums. Their additions depend on each
// other, so that wider vectors would wait for as long.
using Doubles = hn::CappedTag<double, 4>;

struct FloatElements {
  const float* from;
  HWY_INLINE hn::Vec<Doubles> Load(size_t i) const {
    const hn::Rebind<float, Doubles> d;
    return hn::PromoteTo(Doubles(), hn::LoadU(d, from + i));
  }
};

struct BFloat16Elements {
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
  const hwy::float16_t* from;
  HWY_INLINE hn::Vec<Doubles> Load(size_t i) const {
    const hn::Rebind<hwy::float16_t, Doubles> d16;
    const hn::Rebind<float, Doubles> df;
    return hn::PromoteTo(Doubles(), hn::PromoteTo(df, hn::LoadU(d16, from + i)));
  }
};

/// The 16 partial sums of the block that begins at element `begin`. Vectors of fewer than four
/// lanes go through the block more than once, which is in the first-level cache by then.
template <typename Elements>
void PartialSums(Elements elements, size_t begin, double* partial) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  for (size_t first = 0; first < 16; first += 4 * lanes) {
    auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (size_t i = begin + first; i < begin + kBlockElements; i += 16) {
      const auto x0 = elements.Load(i), x1 = elements.Load(i + lanes);
      const auto x2 = elements.Load(i + 2 * lanes), x3 = elements.Load(i + 3 * lanes);
      sum0 = hn::MulAdd(x0, x0, sum0);
      sum1 = hn::MulAdd(x1, x1, sum1);
      sum2 = hn::MulAdd(x2, x2, sum2);
      sum3 = hn::MulAdd(x3, x3, sum3);
    }
    hn::StoreU(sum0, d, partial + first);
    hn::StoreU(sum1, d, partial + first + lanes);
    hn::StoreU(sum2, d, partial + first + 2 * lanes);
    hn::StoreU(sum3, d, partial + first + 3 * lanes);
  }
}

template <typename Elements>
bool SumBlocks(Elements elements, std::span<double> sums) {
  bool finite = true;
  double partial[16];
  for (size_t block = 0; block < sums.size(); ++block) {
    PartialSums(elements, block * kBlockElements, partial);
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t j = 0; j < width; ++j) partial[j] += partial[j + width];
    }
    sums[block] = partial[0];
    // Squares are not negative and their sum cannot overflow: it is finite when all elements are.
    finite &= std::isfinite(partial[0]);
  }
  return finite;
}

bool SumTile(const void* gradient, DType dtype, std::span<double> sums) {
  switch (dtype) {
    case DType::kBFloat16:
      return SumBlocks(BFloat16Elements{static_cast<const uint16_t*>(gradient)}, sums);
    case DType::kFloat16:
      return SumBlocks(Float16Elements{static_cast<const hwy::float16_t*>(gradient)}, sums);
    case DType::kFloat32:
      break;
  }
  return SumBlocks(FloatElements{static_cast<const float*>(gradient)}, sums);
}

#else

bool SumTile(const void* gradient, DType dtype, std::span<double> sums) {
  return BlockSumsReference(gradient, dtype, sums.size() * kBlockElements, sums);
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
  return HWY_DYNAMIC_DISPATCH(SumTile)(gradient, dtype, sums);
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

}  // namespace penstock::kernels

#endif  // HWY_ONCE
