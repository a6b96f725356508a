// LAMB on vectors: this file is compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state/lamb_simd.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/lamb.h"
#include "kernels/state/optimizer_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

struct LambDirection {
#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64
  HWY_INLINE FloatVector operator()(const LambScalars& s, FloatVector g, FloatVector& m,
                                    FloatVector& v) const {
    const Floats d;
    m = hn::MulAdd(g, hn::Set(d, s.one_minus_beta1), hn::Mul(m, hn::Set(d, s.beta1)));
    v = hn::MulAdd(hn::Mul(g, g), hn::Set(d, s.one_minus_beta2), hn::Mul(v, hn::Set(d, s.beta2)));
    return hn::Div(m, hn::Add(hn::Sqrt(v), hn::Set(d, s.eps)));
  }
#endif
};

#if HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

/// w and u of the whole vectors of n elements; returns how many elements that were.
template <typename Weights, typename Gradient, typename Moment>
size_t DirectionsOf(const LambScalars& scalars, const OptimizerTile& tile, size_t n, float* weights,
                    float* updates) {
  const LambScalars s = scalars;  // a copy that writes through the planes' pointers cannot change
  const Weights masters(tile);
  const auto* const gradient = static_cast<const Gradient*>(tile.gradient);
  const auto* const exp_avg = tile.exp_avg.As<Moment>();
  const auto* const exp_avg_sq = tile.exp_avg_sq.As<Moment>();
  const Floats d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto w = masters.Read(i);
    auto m = Load(Whole(), exp_avg + i);
    auto v = Load(Whole(), exp_avg_sq + i);
    const auto g = hn::Mul(Load(Whole(), gradient + i), hn::Set(d, s.grad_scale));
    auto u = LambDirection()(s, g, m, v);
    if (s.decay != 0) u = hn::MulAdd(w, hn::Set(d, s.decay), u);
    hn::StoreU(w, d, weights + i);
    hn::StoreU(u, d, updates + i);
  }
  return i;
}

template <typename Weights, typename Gradient>
size_t DirectionsByMoments(const LambScalars& s, const OptimizerTile& tile, size_t n,
                           float* weights, float* updates) {
  return HasBFloat16Moments(tile)
             ? DirectionsOf<Weights, Gradient, BFloat16>(s, tile, n, weights, updates)
             : DirectionsOf<Weights, Gradient, float>(s, tile, n, weights, updates);
}

template <typename Weights>
size_t DirectionsByGradient(const LambScalars& s, const OptimizerTile& tile, size_t n,
                            float* weights, float* updates) {
  switch (tile.gradient_dtype) {
    case DType::kBFloat16:
      return DirectionsByMoments<Weights, BFloat16>(s, tile, n, weights, updates);
    case DType::kFloat16:
      return DirectionsByMoments<Weights, Float16>(s, tile, n, weights, updates);
    case DType::kFloat32:
      break;
  }
  return DirectionsByMoments<Weights, float>(s, tile, n, weights, updates);
}

size_t LambDirections(const LambScalars& s, const OptimizerTile& tile, size_t n, float* weights,
                      float* updates) {
  return tile.lo.empty() ? DirectionsByGradient<WholeWeights>(s, tile, n, weights, updates)
                         : DirectionsByGradient<SplitWeights>(s, tile, n, weights, updates);
}

#else

size_t LambDirections(const LambScalars&, const OptimizerTile&, size_t, float*, float*) {
  return 0;
}

#endif  // HWY_NATIVE_FMA && HWY_HAVE_FLOAT64

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#define PENSTOCK_RULE(part) Lamb##part
#include "kernels/state/optimizer_dispatch-inl.h"
#undef PENSTOCK_RULE

#if HWY_ONCE

namespace penstock::kernels {
namespace {

HWY_EXPORT(LambDirections);

double SumOfBlock(const float* block) {
  double sum = 0;
  BlockSums(block, DType::kFloat32, kBlockElements, {&sum, 1});
  return sum;
}

}  // namespace

/// Block by block: what is squared is in the first-level cache.
void LambSums(const LambScalars& scalars, const OptimizerTile& tile,
              std::span<TrustSums> of_blocks) {
  const uint64_t n = ElementCountOf<LambScalars>(tile);
  PENSTOCK_CHECK(of_blocks.size() == (n + kBlockElements - 1) / kBlockElements,
                 "{} sums for {} elements", of_blocks.size(), n);
  alignas(64) std::array<float, kBlockElements> weights;
  alignas(64) std::array<float, kBlockElements> updates;
  for (uint64_t block = 0; block < of_blocks.size(); ++block) {
    const uint64_t first = block * kBlockElements;
    const uint64_t count = std::min(kBlockElements, n - first);
    const OptimizerTile part = Part(tile, first, count);
    const size_t done =
        HWY_DYNAMIC_DISPATCH(LambDirections)(scalars, part, count, weights.data(), updates.data());
    if (done < count) {
      LambDirectionsReference(scalars, Part(part, done, count - done),
                              std::span(weights).subspan(done, count - done),
                              std::span(updates).subspan(done, count - done));
    }
    std::fill(weights.begin() + count, weights.end(), 0.0F);
    std::fill(updates.begin() + count, updates.end(), 0.0F);
    of_blocks[block] = {.weights = SumOfBlock(weights.data()),
                        .update = SumOfBlock(updates.data())};
  }
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
