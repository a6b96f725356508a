// LAMB: its sums against the scalar reference, its trust ratio, and steps against itself in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/state/optimizer.h"
#include "tests/kernels/forced_target.h"
#include "tests/kernels/optimizer_tile_data.h"
#include "tests/search_share.h"

namespace penstock::kernels {
namespace {

std::vector<TrustSums> SumsOf(TileData& data, const LambScalars& scalars,
                              void (*sum)(const LambScalars&, const OptimizerTile&,
                                          std::span<TrustSums>)) {
  std::vector<TrustSums> sums((data.count() + kBlockElements - 1) / kBlockElements);
  sum(scalars, data.tile(), sums);
  return sums;
}

class LambTargetTest : public testing::TestWithParam<const char*> {
 private:
  const ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, LambTargetTest, testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LambTargetTest, SumsEqualTheReferenceAtEverySizeAndStartInEveryFormat) {
  uint64_t tried = 0;
  for (const double decay : {0.0, 0.1}) {
    const LambScalars scalars = MakeLambScalars({.weight_decay = decay}, 1e-3, 3, 0.37);
    for (const uint64_t count : {0, 1, 7, 16, 31, 1025, 4095, 4096, 4097, 5000}) {
      for (const uint64_t shift : {0, 1, 5}) {
        for (const TileFormat& format : AllFormats(true, true)) {
          if (tried++ % kEmulatedStride != 0) continue;
          TileData data(format, count, shift);
          FillNormal(data);
          TileData before = data;
          const std::vector<TrustSums> actual = SumsOf(data, scalars, LambSums);
          const std::vector<TrustSums> expected = SumsOf(data, scalars, LambSumsReference);
          for (size_t i = 0; i < actual.size(); ++i) {
            EXPECT_EQ(actual[i].weights, expected[i].weights) << count << ", block " << i;
            EXPECT_EQ(actual[i].update, expected[i].update) << count << ", block " << i;
          }
          EXPECT_EQ(data.DifferencesFrom(before), 0) << "the first pass wrote something";
        }
      }
    }
  }
}

TEST(LambTest, TheRatioIsThatOfTheNormsWithinItsBoundsAndOneWhereANormIsZero) {
  const LambScalars scalars = MakeLambScalars({}, 1e-3, 1, 1);
  EXPECT_EQ(TrustRatio(scalars, {.weights = 9, .update = 4}), 1.5);
  EXPECT_EQ(TrustRatio(scalars, {.weights = 1e6, .update = 4}), 10);
  EXPECT_EQ(TrustRatio(scalars, {.weights = 1e-6, .update = 4}), 0.01);
  EXPECT_EQ(TrustRatio(scalars, {.weights = 0, .update = 4}), 1);
  EXPECT_EQ(TrustRatio(scalars, {.weights = 9, .update = 0}), 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(TrustRatio(scalars, {.weights = 9, .update = nan})));
}

TEST(LambTest, TheStepSizeIsCorrectedForBiasAndScaledByTheRatio) {
  const LambHyperparameters hyper{.beta1 = 0.5, .beta2 = 0.75};
  const double step = 0.25 * std::sqrt(1 - 0.75 * 0.75) / (1 - 0.5 * 0.5);
  const LambScalars scalars = MakeLambScalars(hyper, 0.25, 2, 1);
  EXPECT_EQ(scalars.negative_step_size, static_cast<float>(-step));
  EXPECT_EQ(WithTrustRatio(scalars, 0.3).negative_step_size, static_cast<float>(-step * 0.3));
  const LambHyperparameters uncorrected{.beta1 = 0.5, .beta2 = 0.75, .bias_correction = false};
  EXPECT_EQ(MakeLambScalars(uncorrected, 0.25, 2, 1).negative_step_size, -0.25F);
}

/// A tensor in double.
struct Exact {
  std::vector<double> w, m, v;

  /// One step of DeepSpeed's FusedLamb; returns the ratio.
  double Step(const LambHyperparameters& hyper, double lr, uint64_t t,
              const std::vector<double>& gradient) {
    std::vector<double> u(w.size());
    double weights = 0, updates = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * gradient[i];
      v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * gradient[i] * gradient[i];
      u[i] = m[i] / (std::sqrt(v[i]) + hyper.eps) + hyper.weight_decay * w[i];
      weights += w[i] * w[i];
      updates += u[i] * u[i];
    }
    double ratio = 1;
    if (weights > 0 && updates > 0) {
      ratio = std::min(hyper.max_coeff, std::max(hyper.min_coeff, std::sqrt(weights / updates)));
    }
    const auto steps = static_cast<double>(t);
    const double step = !hyper.bias_correction ? lr
                                               : lr * std::sqrt(1 - std::pow(hyper.beta2, steps)) /
                                                     (1 - std::pow(hyper.beta1, steps));
    for (size_t i = 0; i < w.size(); ++i) w[i] -= step * ratio * u[i];
    return ratio;
  }
};

/// The largest errors over the tensor after `steps` steps, relative to the largest weight.
struct Error {
  double of_weights = 0;
  double least_ratio = 1e9;
  double largest_ratio = 0;
};

Error TwentySteps(const LambHyperparameters& hyper, double weight_size) {
  constexpr uint64_t kElements = 5000;
  TileData data({.split = true, .gradient = DType::kFloat32}, kElements);
  Exact exact{std::vector<double>(kElements), std::vector<double>(kElements),
              std::vector<double>(kElements)};
  std::vector<double> gradient(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    data.Set(i, static_cast<float>(weight_size) * StandardNormal(1, 0, i), 0, 0, 0);
    exact.w[i] = data.weight(i);
  }
  Error error;
  for (uint64_t t = 1; t <= 20; ++t) {
    for (uint64_t i = 0; i < kElements; ++i) {
      const float g = 0.01F * StandardNormal(1, t, i);
      data.Set(i, data.weight(i), data.m(i), data.v(i), g);
      gradient[i] = g;
    }
    const OptimizerScalars scalars = MakeScalars(hyper, 2e-2, t, 1);
    std::vector<TrustSums> of_blocks(2);
    SumForTrust(scalars, data.tile(), of_blocks);
    TrustSums sums;
    for (const TrustSums& block : of_blocks) sums.Add(block);
    Update(WithTrust(scalars, sums), data.tile());
    const double ratio = exact.Step(hyper, 2e-2, t, gradient);
    error.least_ratio = std::min(error.least_ratio, ratio);
    error.largest_ratio = std::max(error.largest_ratio, ratio);
  }
  double largest = 0;
  for (uint64_t i = 0; i < kElements; ++i) largest = std::max(largest, std::abs(exact.w[i]));
  for (uint64_t i = 0; i < kElements; ++i) {
    error.of_weights = std::max(error.of_weights, std::abs(data.weight(i) - exact.w[i]) / largest);
  }
  return error;
}

// Tolerance: a step is rounded in fp32 (2^-24 of the weight, and a few units of the direction), and
// there are 20 of them: 20 * 4 * 2^-24 = 4.8e-6 of the largest weight at most.
TEST(LambTest, TwentyStepsAgreeWithDoublePrecision) {
  const Error free = TwentySteps({.weight_decay = 0.01}, 0.1);
  EXPECT_LT(free.of_weights, 4.8e-6);
  EXPECT_LT(free.least_ratio, 0.2);
  const Error large = TwentySteps({.weight_decay = 0}, 50);
  EXPECT_LT(large.of_weights, 4.8e-6);
  EXPECT_EQ(large.largest_ratio, 10);
  const Error small = TwentySteps({.bias_correction = false, .min_coeff = 0.5}, 1e-3);
  EXPECT_LT(small.of_weights, 4.8e-6);
  EXPECT_EQ(small.least_ratio, 0.5);
  const Error zero = TwentySteps({}, 0);
  EXPECT_LT(zero.of_weights, 4.8e-6);
  EXPECT_EQ(zero.largest_ratio, 1);
}

}  // namespace
}  // namespace penstock::kernels
