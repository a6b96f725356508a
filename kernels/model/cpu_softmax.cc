// The softmaxes of cpu_rows.h: causal, over attention scores; and over logits, with the loss.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/model/cpu_softmax.cc"
// clang-format off: foreach_target.h comes before highway.h
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/model/cpu_rows.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

HWY_INLINE float MaxOf(const float* values, uint64_t n) {
  const auto lowest = Splat(-HUGE_VALF);
  auto highest = lowest;
  ForEachVector(n, [&](size_t i, auto amount) {
    highest = hn::Max(highest, OrElse(amount, Load(amount, values + i), lowest));
  });
  return hn::GetLane(hn::MaxOfLanes(Floats(), highest));
}

/// values[i] = exp(scale · values[i] − shift); returns their sum.
HWY_INLINE float ExpRow(float* values, uint64_t n, float scale, float shift) {
  auto sum = hn::Zero(Floats());
  ForEachVector(n, [&](size_t i, auto amount) {
    const auto power = Exp(hn::MulSub(Load(amount, values + i), Splat(scale), Splat(shift)));
    sum = hn::Add(sum, OrZero(amount, power));
    Store(amount, power, values + i);
  });
  return Sum(sum);
}

/// Leaves exp(scale · scores − its maximum) in the row; returns the reciprocal of the sum.
HWY_INLINE float ExpScores(float* scores, uint64_t visible, float scale) {
  return 1.0f / ExpRow(scores, visible, scale, MaxOf(scores, visible) * scale);
}

template <typename T>
void CausalSoftmaxAs(const CausalStrip& strip, float* scores, T* probabilities) {
  for (uint64_t row = 0; row < strip.rows; ++row) {
    float* s = scores + row * strip.stride;
    T* p = probabilities + row * strip.stride;
    const uint64_t visible = std::min(strip.first_visible + row, strip.columns);
    const auto inverse = Splat(ExpScores(s, visible, strip.scale));
    ForEachVector(visible, [&](size_t i, auto amount) {
      Store(amount, hn::Mul(Load(amount, s + i), inverse), p + i);
    });
    std::memset(static_cast<void*>(p + visible), 0, (strip.columns - visible) * sizeof(T));
  }
}

void CausalSoftmax(const CausalStrip& strip, float* scores, DType dtype, void* probabilities) {
  WithType(dtype,
           [&]<typename T>(T*) { CausalSoftmaxAs(strip, scores, static_cast<T*>(probabilities)); });
}

template <typename T>
void CausalSoftmaxBackwardAs(const CausalStrip& strip, float* scores, const float* d_p,
                             T* probabilities, T* d_scores) {
  for (uint64_t row = 0; row < strip.rows; ++row) {
    const uint64_t offset = row * strip.stride;
    float* s = scores + offset;
    const float* dp = d_p + offset;
    T* p = probabilities + offset;
    T* ds = d_scores + offset;
    const uint64_t visible = std::min(strip.first_visible + row, strip.columns);
    const auto inverse = Splat(ExpScores(s, visible, strip.scale));

    auto sum = hn::Zero(Floats());
    ForEachVector(visible, [&](size_t i, auto amount) {
      const auto probability = hn::Mul(Load(amount, s + i), inverse);
      sum = hn::Add(sum, OrZero(amount, hn::Mul(probability, Load(amount, dp + i))));
      Store(amount, probability, s + i);
    });
    const auto mean = Splat(Sum(sum));
    ForEachVector(visible, [&](size_t i, auto amount) {
      const auto probability = Load(amount, s + i);
      const auto centred = hn::Sub(Load(amount, dp + i), mean);
      Store(amount, hn::Mul(hn::Mul(probability, Splat(strip.scale)), centred), ds + i);
      Store(amount, probability, p + i);
    });
    const uint64_t hidden = (strip.columns - visible) * sizeof(T);
    std::memset(static_cast<void*>(p + visible), 0, hidden);
    std::memset(static_cast<void*>(ds + visible), 0, hidden);
  }
}

void CausalSoftmaxBackward(const CausalStrip& strip, float* scores, const float* d_p, DType dtype,
                           void* probabilities, void* d_scores) {
  WithType(dtype, [&]<typename T>(T*) {
    CausalSoftmaxBackwardAs(strip, scores, d_p, static_cast<T*>(probabilities),
                            static_cast<T*>(d_scores));
  });
}

double CrossEntropy(float* logits, uint64_t n, uint64_t target, float gradient_scale, DType dtype,
                    void* d_logits) {
  const float highest = MaxOf(logits, n);
  const double shifted = static_cast<double>(logits[target]) - static_cast<double>(highest);
  const float sum = ExpRow(logits, n, 1.0f, highest);
  if (d_logits != nullptr) {
    const float p_target = logits[target] / sum;
    WithType(dtype, [&]<typename T>(T*) {
      auto* out = static_cast<T*>(d_logits);
      const auto factor = Splat(gradient_scale / sum);
      ForEachVector(n, [&](size_t i, auto amount) {
        Store(amount, hn::Mul(Load(amount, logits + i), factor), out + i);
      });
      Store(Partial{1}, Splat(gradient_scale * (p_target - 1.0f)), out + target);
    });
  }
  return std::log(static_cast<double>(sum)) - shifted;
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock::kernels {

HWY_EXPORT(CausalSoftmax);
HWY_EXPORT(CausalSoftmaxBackward);
HWY_EXPORT(CrossEntropy);

void CausalSoftmaxRows(const CausalStrip& strip, float* scores, DType dtype, void* probabilities) {
  HWY_DYNAMIC_DISPATCH(CausalSoftmax)(strip, scores, dtype, probabilities);
}

void CausalSoftmaxBackwardRows(const CausalStrip& strip, float* scores, const float* d_p,
                               DType dtype, void* probabilities, void* d_scores) {
  HWY_DYNAMIC_DISPATCH(CausalSoftmaxBackward)(strip, scores, d_p, dtype, probabilities, d_scores);
}

double CrossEntropyRow(float* logits, uint64_t n, uint64_t target, float gradient_scale,
                       DType dtype, void* d_logits) {
  return HWY_DYNAMIC_DISPATCH(CrossEntropy)(logits, n, target, gradient_scale, dtype, d_logits);
}

}  // namespace penstock::kernels
#endif
