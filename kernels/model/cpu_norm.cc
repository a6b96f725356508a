// The layer norm of cpu_rows.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/model/cpu_norm.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/model/cpu_rows.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

struct Statistics {
  float mean;
  float rstd;
};

using SignedVector = hn::Vec<SignedWords>;

/// Without its sign, a float's pattern grows with its magnitude, and NaN is above infinity.
HWY_INLINE SignedVector LargerPattern(SignedVector patterns, FloatVector values) {
  return hn::Max(patterns, hn::BitCast(SignedWords(), hn::Abs(values)));
}

HWY_INLINE float LargestOf(SignedVector patterns) {
  constexpr int32_t kInfinity = 0x7f800000;
  const int32_t largest = hn::GetLane(hn::MaxOfLanes(SignedWords(), patterns));
  return std::bit_cast<float>(std::min(largest, kInfinity));
}

template <typename T>
HWY_INLINE Statistics RowStatistics(const T* x, uint64_t width, float eps, SignedVector& largest) {
  auto sum = hn::Zero(Floats());
  auto patterns = largest;
  ForEachVector(width, [&](size_t i, auto amount) {
    const auto values = Load(amount, x + i);
    sum = hn::Add(sum, values);
    patterns = LargerPattern(patterns, values);
  });
  largest = patterns;
  const float mean = Sum(sum) / static_cast<float>(width);
  auto squares = hn::Zero(Floats());
  ForEachVector(width, [&](size_t i, auto amount) {
    const auto deviation = OrZero(amount, hn::Sub(Load(amount, x + i), Splat(mean)));
    squares = hn::MulAdd(deviation, deviation, squares);
  });
  const float variance = Sum(squares) / static_cast<float>(width);
  return {mean, 1.0f / std::sqrt(variance + eps)};
}

template <typename T>
float ForwardAs(const LayerNormRows& norm, const T* bias, float eps, uint64_t begin, uint64_t end,
                T* out, float* mean, float* rstd) {
  auto largest = hn::Zero(SignedWords());
  const auto* weight = static_cast<const T*>(norm.weight);
  for (uint64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(norm.x) + row * norm.width;
    T* y = out + row * norm.width;
    const Statistics statistics = RowStatistics(x, norm.width, eps, largest);
    mean[row] = statistics.mean;
    rstd[row] = statistics.rstd;
    ForEachVector(norm.width, [&](size_t i, auto amount) {
      const auto normal =
          hn::Mul(hn::Sub(Load(amount, x + i), Splat(statistics.mean)), Splat(statistics.rstd));
      Store(amount, hn::MulAdd(normal, Load(amount, weight + i), Load(amount, bias + i)), y + i);
    });
  }
  return LargestOf(largest);
}

float LayerNormForward(const LayerNormRows& norm, const void* bias, float eps, uint64_t begin,
                       uint64_t end, void* out, float* mean, float* rstd) {
  float largest = 0;
  WithType(norm.dtype, [&]<typename T>(T*) {
    largest = ForwardAs(norm, static_cast<const T*>(bias), eps, begin, end, static_cast<T*>(out),
                        mean, rstd);
  });
  return largest;
}

/// With n = (x − mean) rstd and g = d_out weight: d_x = rstd (g − mean(g) − n mean(g n)).
template <typename T>
void BackwardAs(const LayerNormRows& norm, const LayerNormGradients& gradients, uint64_t row,
                float* d_weight, float* d_bias) {
  const auto* weight = static_cast<const T*>(norm.weight);
  const T* x = static_cast<const T*>(norm.x) + row * norm.width;
  const T* d_out = static_cast<const T*>(gradients.d_out) + row * norm.width;
  T* d_x = static_cast<T*>(gradients.d_x) + row * norm.width;
  const auto mean = Splat(gradients.mean[row]);
  const auto rstd = Splat(gradients.rstd[row]);

  auto sum_g = hn::Zero(Floats());
  auto sum_gn = hn::Zero(Floats());
  ForEachVector(norm.width, [&](size_t i, auto amount) {
    const auto gradient = Load(amount, d_out + i);
    const auto normal = OrZero(amount, hn::Mul(hn::Sub(Load(amount, x + i), mean), rstd));
    const auto g = hn::Mul(gradient, Load(amount, weight + i));
    sum_g = hn::Add(sum_g, g);
    sum_gn = hn::MulAdd(g, normal, sum_gn);
    Store(amount, hn::MulAdd(gradient, normal, Load(amount, d_weight + i)), d_weight + i);
    Store(amount, hn::Add(gradient, Load(amount, d_bias + i)), d_bias + i);
  });

  const float inverse_width = 1.0f / static_cast<float>(norm.width);
  const auto mean_g = Splat(Sum(sum_g) * inverse_width);
  const auto mean_gn = Splat(Sum(sum_gn) * inverse_width);
  ForEachVector(norm.width, [&](size_t i, auto amount) {
    const auto normal = hn::Mul(hn::Sub(Load(amount, x + i), mean), rstd);
    const auto g = hn::Mul(Load(amount, d_out + i), Load(amount, weight + i));
    const auto centred = hn::Sub(hn::Sub(g, mean_g), hn::Mul(normal, mean_gn));
    auto result = hn::Mul(centred, rstd);
    if (gradients.add_to_d_x) result = hn::Add(result, Load(amount, d_x + i));
    Store(amount, result, d_x + i);
  });
}

void LayerNormBackward(const LayerNormRows& norm, const LayerNormGradients& gradients,
                       uint64_t begin, uint64_t end, float* d_weight, float* d_bias) {
  WithType(norm.dtype, [&]<typename T>(T*) {
    for (uint64_t row = begin; row < end; ++row) {
      BackwardAs<T>(norm, gradients, row, d_weight, d_bias);
    }
  });
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock::kernels {

HWY_EXPORT(LayerNormForward);
HWY_EXPORT(LayerNormBackward);

float LayerNormForwardRows(const LayerNormRows& norm, const void* bias, float eps, uint64_t begin,
                           uint64_t end, void* out, float* mean, float* rstd) {
  return HWY_DYNAMIC_DISPATCH(LayerNormForward)(norm, bias, eps, begin, end, out, mean, rstd);
}

void LayerNormBackwardRows(const LayerNormRows& norm, const LayerNormGradients& gradients,
                           uint64_t begin, uint64_t end, float* d_weight, float* d_bias) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackward)(norm, gradients, begin, end, d_weight, d_bias);
}

}  // namespace penstock::kernels
#endif
