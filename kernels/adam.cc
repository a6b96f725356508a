// The scalars, the tile's contract and the scalar reference. The vector code is in adam_simd.cc.
#include "kernels/adam.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/check.h"

namespace penstock::kernels {
namespace {

float LoadGradient(const AdamTile& tile, uint64_t i) {
  const auto* bytes =
      static_cast<const std::byte*>(tile.gradient) + i * SizeOf(tile.gradient_dtype).value;
  if (tile.gradient_dtype == DType::kBFloat16) {
    BFloat16 value;
    std::memcpy(&value, bytes, sizeof(value));
    return ToFloat(value);
  }
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// One element: updates the moments, returns the new weight.
float UpdateElement(const AdamScalars& s, float w, float gradient, float& m, float& v) {
  float g = gradient * s.grad_scale;
  if (!s.adam_w_mode && s.decay != 0) g = std::fma(w, s.decay, g);
  m = std::fma(g, s.one_minus_beta1, m * s.beta1);
  v = std::fma(g * g, s.one_minus_beta2, v * s.beta2);
  const float d = m / std::fma(std::sqrt(v), s.rsqrt_bias2, s.eps);
  if (s.adam_w_mode && s.decay != 0) w = std::fma(w, s.decay, w);
  return std::fma(d, s.negative_step_size, w);
}

}  // namespace

AdamScalars MakeAdamScalars(const AdamHyperparameters& hyper, double lr, uint64_t t,
                            double grad_scale) {
  PENSTOCK_CHECK(t >= 1, "Adam's t counts from 1");
  const auto steps = static_cast<double>(t);
  const double bias1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, steps) : 1.0;
  const double bias2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, steps) : 1.0;
  const double decay = hyper.adam_w_mode ? -lr * hyper.weight_decay : hyper.weight_decay;
  return AdamScalars{
      .beta1 = static_cast<float>(hyper.beta1),
      .one_minus_beta1 = static_cast<float>(1 - hyper.beta1),
      .beta2 = static_cast<float>(hyper.beta2),
      .one_minus_beta2 = static_cast<float>(1 - hyper.beta2),
      .eps = static_cast<float>(hyper.eps),
      .rsqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2)),
      .negative_step_size = static_cast<float>(-lr / bias1),
      .decay = static_cast<float>(decay),
      .grad_scale = static_cast<float>(grad_scale),
      .adam_w_mode = hyper.adam_w_mode,
  };
}

uint64_t ElementCount(const AdamTile& tile) {
  const uint64_t n = tile.exp_avg.size();
  const bool split =
      tile.weight_hi.size() == n && tile.weight_lo.size() == n && tile.weight.empty();
  const bool whole = tile.weight.size() == n && tile.weight_hi.empty() && tile.weight_lo.empty();
  PENSTOCK_CHECK(split || whole, "{} moments with {} + {} split and {} whole weights", n,
                 tile.weight_hi.size(), tile.weight_lo.size(), tile.weight.size());
  PENSTOCK_CHECK(tile.exp_avg_sq.size() == n, "{} first and {} second moments", n,
                 tile.exp_avg_sq.size());
  PENSTOCK_CHECK(tile.gradient != nullptr || n == 0, "{} elements without a gradient", n);
  PENSTOCK_CHECK(tile.gradient_dtype == DType::kFloat32 || tile.gradient_dtype == DType::kBFloat16,
                 "gradient of dtype {}", ToString(tile.gradient_dtype));
  return n;
}

AdamTile Part(const AdamTile& tile, uint64_t first, uint64_t count) {
  const uint64_t n = ElementCount(tile);
  PENSTOCK_CHECK(first <= n && count <= n - first, "elements {} + {} of {}", first, count, n);
  const auto cut = [&](auto span) { return span.empty() ? span : span.subspan(first, count); };
  AdamTile part{.weight_hi = cut(tile.weight_hi),
                .weight_lo = cut(tile.weight_lo),
                .weight = cut(tile.weight),
                .exp_avg = cut(tile.exp_avg),
                .exp_avg_sq = cut(tile.exp_avg_sq),
                .gradient = tile.gradient,
                .gradient_dtype = tile.gradient_dtype};
  if (tile.gradient != nullptr) {
    part.gradient =
        static_cast<const std::byte*>(tile.gradient) + first * SizeOf(tile.gradient_dtype).value;
  }
  return part;
}

void AdamUpdateReference(const AdamScalars& scalars, const AdamTile& tile) {
  const uint64_t n = ElementCount(tile);
  for (uint64_t i = 0; i < n; ++i) {
    const bool split = tile.weight.empty();
    const float old_weight =
        split ? Join(SplitMaster{tile.weight_hi[i], tile.weight_lo[i]}) : tile.weight[i];
    const float weight = UpdateElement(scalars, old_weight, LoadGradient(tile, i), tile.exp_avg[i],
                                       tile.exp_avg_sq[i]);
    if (split) {
      const SplitMaster halves = Split(weight);
      tile.weight_hi[i] = halves.hi;
      tile.weight_lo[i] = halves.lo;
    } else {
      tile.weight[i] = weight;
    }
  }
}

}  // namespace penstock::kernels
