// The rules against PyTorch, and the scalars of a step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "kernels/state/adagrad.h"
#include "kernels/state/adam.h"
#include "kernels/state/lion.h"
#include "tests/kernels/optimizer_tile_data.h"

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

TEST(AdagradReferenceTest, ScalarsAreComputedInDoubleAndRoundedOnce) {
  const AdagradScalars scalars =
      MakeAdagradScalars({.lr_decay = 0.5, .weight_decay = 0.1}, 0.25, 3, 1.0 / 3);
  EXPECT_EQ(scalars.eps, 1e-10f);
  EXPECT_EQ(scalars.negative_step_size, -0.125f);
  EXPECT_EQ(scalars.decay, 0.1f);
  EXPECT_EQ(scalars.grad_scale, 0.333333343f);
}

TEST(LionReferenceTest, ScalarsAreComputedInDoubleAndRoundedOnce) {
  const LionScalars scalars = MakeLionScalars({.weight_decay = 0.1}, 0.25, 1.0 / 3);
  EXPECT_EQ(scalars.beta1, 0.9f);
  EXPECT_EQ(scalars.one_minus_beta1, 0.1f);
  EXPECT_EQ(scalars.beta2, 0.99f);
  EXPECT_EQ(scalars.one_minus_beta2, 0.01f);
  EXPECT_EQ(scalars.negative_step_size, -0.25f);
  EXPECT_EQ(scalars.decay, -0.025f);
  EXPECT_EQ(scalars.grad_scale, 0.333333343f);
}

/// Three steps of a rule on three elements; `update(t, tile)` is the step.
template <typename Update>
void ExpectAfterThreeSteps(const TileFormat& format, float first_sum, const double (&expected)[3],
                           Update update) {
  constexpr float kGradients[3][3] = {
      {0.5f, -0.25f, 1e-3f}, {-1.0f, 0.125f, 2e-3f}, {0.75f, 3.0f, -4e-3f}};
  constexpr float kStart[3] = {1.0f, -2.0f, 0.5f};
  TileData data(format, 3);
  for (uint64_t i = 0; i < 3; ++i) data.Set(i, kStart[i], 0, first_sum, 0);
  for (uint64_t t = 1; t <= 3; ++t) {
    OptimizerTile tile = data.tile();
    tile.gradient = kGradients[t - 1];
    update(t, tile);
  }
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(data.weight(i), expected[i], 4e-7 * std::abs(expected[i]));
  }
}

// torch.optim.AdamW and Adam in float64: lr 0.01, betas (0.9, 0.95), eps 1e-8.
TEST(AdamReferenceTest, AgreesWithPyTorch) {
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
    ExpectAfterThreeSteps({.gradient = DType::kFloat32}, 0, run.expected,
                          [&](uint64_t t, const OptimizerTile& tile) {
                            AdamUpdate(MakeAdamScalars(hyper, 1e-2, t, 1), tile);
                          });
  }
}

// torch.optim.Adagrad in float64: lr 0.01, lr_decay 0.1, initial_accumulator_value 0.25, eps 1e-10.
TEST(AdagradReferenceTest, AgreesWithPyTorch) {
  struct Run {
    double decay;
    double expected[3];
  };
  const Run runs[] = {
      {0.0, {0.9959996869801911, -2.0056971181380323, 0.5000103006345972}},
      {0.1, {0.9943489597450478, -2.000412092333424, 0.49729911506071534}},
  };
  for (const Run& run : runs) {
    const AdagradHyperparameters hyper{.lr_decay = 0.1, .weight_decay = run.decay};
    ExpectAfterThreeSteps({.gradient = DType::kFloat32, .exp_avg = false}, 0.25f, run.expected,
                          [&](uint64_t t, const OptimizerTile& tile) {
                            AdagradUpdate(MakeAdagradScalars(hyper, 1e-2, t, 1), tile);
                          });
  }
}

// The paper's algorithm 2 in float64 (PyTorch has no Lion): lr 0.01, betas (0.9, 0.99).
TEST(LionReferenceTest, AgreesWithThePaper) {
  struct Run {
    double decay;
    double expected[3];
  };
  const Run runs[] = {
      {0.0, {0.99, -2.01, 0.49}},
      {0.1, {0.987012989, -2.004015988, 0.4885314895}},
  };
  for (const Run& run : runs) {
    const LionHyperparameters hyper{.weight_decay = run.decay};
    ExpectAfterThreeSteps({.gradient = DType::kFloat32, .exp_avg_sq = false}, 0, run.expected,
                          [&](uint64_t, const OptimizerTile& tile) {
                            LionUpdate(MakeLionScalars(hyper, 1e-2, 1), tile);
                          });
  }
}

}  // namespace
}  // namespace penstock::kernels
