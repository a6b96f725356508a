// The scalar reference against Adam in double and against PyTorch, and the scalars of a step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "kernels/adam.h"
#include "tests/kernels/adam_tile_data.h"

namespace penstock::kernels {
namespace {

TEST(AdamReferenceTest, ScalarsAreComputedInDoubleAndRoundedOnce) {
  const AdamHyperparameters hyper{.weight_decay = 0.1};
  const AdamScalars first = MakeAdamScalars(hyper, 0.25, 1, 1.0 / 3);
  EXPECT_EQ(first.beta1, 0.9f);
  EXPECT_EQ(first.one_minus_beta1, 0.1f);
  EXPECT_EQ(first.beta2, 0.999f);
  EXPECT_EQ(first.one_minus_beta2, 0.001f) << "1 - 0.999f is 0.00100004673";
  EXPECT_EQ(first.eps, 1e-8f);
  EXPECT_EQ(first.rsqrt_bias2, 31.6227766016838f);
  EXPECT_EQ(first.negative_step_size, -2.5f);
  EXPECT_EQ(first.decay, -0.025f);
  EXPECT_EQ(first.grad_scale, 0.333333343f);

  const AdamScalars late = MakeAdamScalars(hyper, 0.25, 100000, 1);
  EXPECT_EQ(late.rsqrt_bias2, 1.0f);
  EXPECT_EQ(late.negative_step_size, -0.25f);
  const AdamScalars second = MakeAdamScalars(hyper, 0.25, 2, 1);
  EXPECT_EQ(second.rsqrt_bias2, 22.3662720421294f) << "1 / sqrt(1 - 0.998001)";
  EXPECT_EQ(second.negative_step_size, -1.31578947368421f) << "-0.25 / 0.19";
}

TEST(AdamReferenceTest, ScalarsWithoutBiasCorrectionAndInTheL2Form) {
  const AdamScalars scalars = MakeAdamScalars(
      {.weight_decay = 0.1, .adam_w_mode = false, .bias_correction = false}, 0.25, 1, 1);
  EXPECT_EQ(scalars.rsqrt_bias2, 1.0f);
  EXPECT_EQ(scalars.negative_step_size, -0.25f);
  EXPECT_EQ(scalars.decay, 0.1f);
  EXPECT_FALSE(scalars.adam_w_mode);
}

/// Textbook Adam in double. `magnitude` bounds what cancels: gradient, first moment and step.
struct Exact {
  double weight, m, v, m_magnitude, step_magnitude;
};

Exact ExactStep(const AdamHyperparameters& hyper, double lr, uint64_t t, double scale,
                const TileData& before, uint64_t i) {
  const double w = before.weight(i);
  double g = before.gradient(i) * scale;
  double g_magnitude = std::abs(g);
  if (!hyper.adam_w_mode) {
    g += hyper.weight_decay * w;
    g_magnitude += std::abs(hyper.weight_decay * w);
  }
  const double m = hyper.beta1 * before.m(i) + (1 - hyper.beta1) * g;
  const double v = hyper.beta2 * before.v(i) + (1 - hyper.beta2) * g * g;
  const double m_magnitude = std::abs(hyper.beta1 * before.m(i)) + (1 - hyper.beta1) * g_magnitude;
  const auto steps = static_cast<double>(t);
  const double bias1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, steps) : 1;
  const double bias2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, steps) : 1;
  const double denominator = std::sqrt(v / bias2) + hyper.eps;
  const double kept = hyper.adam_w_mode ? w * (1 - lr * hyper.weight_decay) : w;
  return {kept - lr * (m / bias1) / denominator, m, v, m_magnitude,
          lr * (m_magnitude / bias1) / denominator};
}

// Bounds, with u = 2^-24: the moments have at most 8 roundings of what they are summed from, v
// twice that as g is squared; the step 24; the weight is rounded twice more.
TEST(AdamReferenceTest, AgreesWithTextbookAdamInDouble) {
  constexpr double u = 0x1p-24;
  constexpr double lr = 1e-2;
  for (const TileData::Format format : kFormats) {
    for (const AdamHyperparameters& hyper : AllModes()) {
      for (const uint64_t t : {uint64_t{1}, uint64_t{100000}}) {
        TileData before(format, 4097);
        FillNormal(before);
        TileData after = before;
        AdamUpdateReference(MakeAdamScalars(hyper, lr, t, 0.7), after.tile());
        for (uint64_t i = 0; i < after.count(); ++i) {
          const Exact exact = ExactStep(hyper, lr, t, 0.7, before, i);
          ASSERT_NEAR(after.m(i), exact.m, 8 * u * exact.m_magnitude);
          const double g_bound = exact.m_magnitude / (1 - hyper.beta1);
          ASSERT_NEAR(after.v(i), exact.v,
                      16 * u * (exact.v + (1 - hyper.beta2) * g_bound * g_bound));
          ASSERT_NEAR(after.weight(i), exact.weight,
                      2 * u * std::abs(before.weight(i)) + 32 * u * exact.step_magnitude);
        }
      }
    }
  }
}

// torch.optim.AdamW and Adam in float64: three steps, lr 0.01, betas (0.9, 0.95), eps 1e-8.
TEST(AdamReferenceTest, AgreesWithPyTorch) {
  constexpr float kGradients[3][3] = {
      {0.5f, -0.25f, 1e-3f}, {-1.0f, 0.125f, 2e-3f}, {0.75f, 3.0f, -4e-3f}};
  constexpr float kStart[3] = {1.0f, -2.0f, 0.5f};
  struct Run {
    bool adam_w;
    double decay;
    double expected[3];
  };
  const Run runs[] = {
      {true, 0.1, {0.9894476615560485, -1.9873664536728197, 0.4808552757619114}},
      {false, 0.1, {0.9900459779253478, -1.987296663920829, 0.47005010838698325}},
      {false, 0.0, {0.9924283062959074, -1.9933377819792752, 0.4823242066632422}},
  };
  for (const Run& run : runs) {
    const AdamHyperparameters hyper{
        .beta2 = 0.95, .weight_decay = run.decay, .adam_w_mode = run.adam_w};
    TileData data({true, DType::kFloat32}, 3);
    for (uint64_t i = 0; i < 3; ++i) data.Set(i, kStart[i], 0, 0, 0);
    for (uint64_t t = 1; t <= 3; ++t) {
      AdamTile tile = data.tile();
      tile.gradient = kGradients[t - 1];
      AdamUpdate(MakeAdamScalars(hyper, 1e-2, t, 1), tile);
    }
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(data.weight(i), run.expected[i], 4e-7 * std::abs(run.expected[i]));
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
