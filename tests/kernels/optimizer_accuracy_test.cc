// Every rule against itself in double, element by element, on every instruction set: how many units
// in the last place the fp32 arithmetic may be off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/kernels/forced_target.h"
#include "tests/kernels/optimizer_steps.h"
#include "tests/kernels/optimizer_tile_data.h"
#include "tests/search_share.h"

namespace penstock::kernels {
namespace {

constexpr double kLr = 1e-2;
constexpr double kScale = 0.7;
constexpr int kFloatBits = 24;
constexpr int kBFloat16Bits = 8;

/// The distance of neighbours with `bits` of significand at x; of denormals where x is one.
double Ulp(double x, int bits = kFloatBits) {
  const int exponent = x == 0 ? -126 : std::max(std::ilogb(x), -126);
  return std::ldexp(1.0, exponent - (bits - 1));
}

/// The allowed errors. The unit of a sum is the ulp of its largest term, so that it follows
/// cancellation; that of the weight also has what a unit of each moment does to the step.
struct AllowedUlp {
  double exp_avg;
  double exp_avg_sq;
  double weight;
};
//                             exp_avg  exp_avg_sq  weight
constexpr AllowedUlp kAdamUlp{2.25, 2.25, 1.5};  // AdamW, and Adam without decay
constexpr AllowedUlp kAdamL2Ulp{2.25, 3, 1.5};   // Adam with decay in the gradient
constexpr AllowedUlp kLionUlp{2.25, 0, 1.75};
constexpr AllowedUlp kAdagradUlp{0, 2, 1.25};

/// A step in double, and the unit of each of its results.
struct Exact {
  double weight, m, v;
  double weight_unit, m_unit, v_unit;
  double sign_error = 0;  ///< Lion: the largest error that a sign near zero can make
};

/// A value, its largest term and the ulp of that.
struct Sum {
  double value;
  double largest;
  double unit() const { return Ulp(largest); }
};

Sum Add(double a, double b) { return {a + b, std::max(std::abs(a), std::abs(b))}; }

struct Before {
  double w, m, v, g;  ///< g: times the scale
};

/// What L2 decay makes of the gradient.
Sum DecayedGradient(const Before& before, double weight_decay) {
  return Add(before.g, weight_decay * before.w);
}

Exact ExactAdam(const AdamHyperparameters& hyper, uint64_t t, const Before& before) {
  const Sum g = DecayedGradient(before, hyper.adam_w_mode ? 0 : hyper.weight_decay);
  const Sum m = Add(hyper.beta1 * before.m, (1 - hyper.beta1) * g.value);
  const Sum v = Add(hyper.beta2 * before.v, (1 - hyper.beta2) * g.value * g.value);
  const double m_unit = std::max(m.unit(), (1 - hyper.beta1) * g.unit());
  const double v_unit = std::max(v.unit(), 2 * (1 - hyper.beta2) * std::abs(g.value) * g.unit());
  const auto steps = static_cast<double>(t);
  const double bias1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, steps) : 1;
  const double bias2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, steps) : 1;
  const double root = std::sqrt(v.value / bias2);
  const double denominator = root + hyper.eps;
  const double step = kLr / bias1 * m.value / denominator;
  // A unit of m and one of v in the step: d(m / (sqrt(v) + eps)).
  const double root_unit = root == 0 ? std::sqrt(v_unit / bias2) : v_unit / bias2 / (2 * root);
  const double step_unit =
      kLr / bias1 * m_unit / denominator + std::abs(step) * root_unit / denominator + Ulp(step);
  const double kept = before.w * (1 - (hyper.adam_w_mode ? kLr * hyper.weight_decay : 0));
  return {kept - step, m.value, v.value, Ulp(before.w) + step_unit, m_unit, v_unit};
}

Exact ExactLion(const LionHyperparameters& hyper, const Before& before) {
  const Sum c = Add(hyper.beta1 * before.m, (1 - hyper.beta1) * before.g);
  const Sum m = Add(hyper.beta2 * before.m, (1 - hyper.beta2) * before.g);
  const double sign = c.value == 0 ? 0 : std::copysign(1.0, c.value);
  const double kept = before.w * (1 - kLr * hyper.weight_decay);
  const bool near_zero = std::abs(c.value) < 4 * c.unit();
  return {kept - kLr * sign,      m.value, 0, Ulp(std::max(std::abs(before.w), kLr)), m.unit(), 0,
          near_zero ? 2 * kLr : 0};
}

Exact ExactAdagrad(const AdagradHyperparameters& hyper, uint64_t t, const Before& before) {
  const Sum g = DecayedGradient(before, hyper.weight_decay);
  const Sum v = Add(before.v, g.value * g.value);
  const double v_unit = std::max(v.unit(), 2 * std::abs(g.value) * g.unit());
  const double lr = kLr / (1 + static_cast<double>(t - 1) * hyper.lr_decay);
  const double root = std::sqrt(v.value);
  const double denominator = root + hyper.eps;
  const double step = lr * g.value / denominator;
  const double root_unit = root == 0 ? std::sqrt(v_unit) : v_unit / (2 * root);
  const double step_unit =
      lr * g.unit() / denominator + std::abs(step) * root_unit / denominator + Ulp(step);
  return {before.w - step, 0, v.value, Ulp(before.w) + step_unit, 0, v_unit};
}

/// One mode of one rule with its row of the table.
struct Case {
  OptimizerStep step;
  std::function<Exact(const Before&)> exact;
  AllowedUlp allowed;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const uint64_t t : {uint64_t{1}, uint64_t{100000}}) {
    for (const AdamHyperparameters& hyper : AllAdamModes()) {
      const bool l2 = !hyper.adam_w_mode && hyper.weight_decay != 0;
      cases.push_back({AdamStep(hyper, kLr, t, kScale),
                       [=](const Before& before) { return ExactAdam(hyper, t, before); },
                       l2 ? kAdamL2Ulp : kAdamUlp});
    }
    for (const double decay : {0.0, 0.1}) {
      const AdagradHyperparameters hyper{.lr_decay = 1e-3, .weight_decay = decay};
      cases.push_back({AdagradStep(hyper, kLr, t, kScale),
                       [=](const Before& before) { return ExactAdagrad(hyper, t, before); },
                       kAdagradUlp});
    }
  }
  for (const double decay : {0.0, 0.1}) {
    const LionHyperparameters hyper{.weight_decay = decay};
    cases.push_back({LionStep(hyper, kLr, kScale),
                     [=](const Before& before) { return ExactLion(hyper, before); }, kLionUlp});
  }
  return cases;
}

/// Normal values times powers of ten: gradients from denormal to just below those whose square is
/// infinite, moments from denormal on, weights of which some are denormal.
std::vector<Sample> WideSamples(int least_gradient, int greatest_gradient) {
  const auto scaled = [](uint64_t i, uint64_t stream, int low, int high) {
    const auto range = static_cast<uint32_t>(high - low + 1);
    const int exponent = low + static_cast<int>(Philox(4, stream, i)[0] % range);
    return static_cast<float>(StandardNormal(4, stream + 8, i) * std::pow(10.0, exponent));
  };
  std::vector<Sample> samples;
  for (uint64_t i = 0; i < kMaxElements; ++i) {
    const float root = scaled(i, 2, -21, 17);
    samples.push_back({
        .weight = i % 7 == 0 ? scaled(i, 0, -44, -38) : scaled(i, 0, -6, 2),
        .m = scaled(i, 1, -44, 17),
        .v = i % 5 == 0 ? 0 : root * root,
        .gradient =
            i % 3 == 0 ? scaled(i, 3, -4, 0) : scaled(i, 3, least_gradient, greatest_gradient),
    });
  }
  return samples;
}

void FillWide(TileData& data) {
  static const std::vector<Sample> samples = WideSamples(-44, 17);
  static const std::vector<Sample> fp16_samples = WideSamples(-8, 3);
  Fill(data, data.format().gradient == DType::kFloat16 ? fp16_samples : samples);
}

class OptimizerAccuracyTest : public testing::TestWithParam<const char*> {
 protected:
  static void ExpectWithinTheTable(const Case& of, const TileFormat& format, uint64_t count,
                                   uint64_t shift, void (*fill)(TileData&)) {
    SCOPED_TRACE(of.step.name + ", " + testing::PrintToString(format));
    TileData before(format, count, shift);
    fill(before);
    TileData after = before;
    of.step.update(after.tile());
    for (uint64_t i = 0; i < count; ++i) {
      const Exact exact =
          of.exact({before.weight(i), before.m(i), before.v(i), before.gradient(i) * kScale});
      // Stochastic rounding is off by less than a bfloat16 unit of what it rounds.
      const bool half = format.moments == DType::kBFloat16;
      const double m_rounding = half ? Ulp(exact.m, kBFloat16Bits) : 0;
      const double v_rounding = half ? Ulp(exact.v, kBFloat16Bits) : 0;
      ASSERT_NEAR(after.m(i), exact.m, m_rounding + of.allowed.exp_avg * exact.m_unit) << i;
      ASSERT_NEAR(after.v(i), exact.v, v_rounding + of.allowed.exp_avg_sq * exact.v_unit) << i;
      ASSERT_NEAR(after.weight(i), exact.weight,
                  exact.sign_error + of.allowed.weight * exact.weight_unit)
          << i;
      ExpectCopyIsRounded(after, i);
    }
  }

  template <typename Expect>
  static void ForAllCases(Expect expect) {
    uint64_t tried = 0;
    for (const Case& of : AllCases()) {
      for (const TileFormat& format : AllFormats(of.step.exp_avg, of.step.exp_avg_sq)) {
        if (tried++ % kEmulatedStride == 0) expect(of, format);
      }
    }
  }

  static void ExpectCopyIsRounded(const TileData& after, uint64_t i) {
    if (!after.format().copy) return;
    const float weight = after.weight(i);
    ASSERT_EQ(after.copy(i), after.format().copy == DType::kBFloat16 ? RoundToBFloat16(weight).bits
                                                                     : RoundToFloat16(weight));
  }

 private:
  const ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, OptimizerAccuracyTest, testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(OptimizerAccuracyTest, EveryModeIsWithinTheTableAtEverySizeAndStart) {
  ForAllCases([](const Case& of, const TileFormat& format) {
    for (const uint64_t count : {0, 1, 15, 17}) {
      for (const uint64_t shift : {0, 1, 3}) {
        ExpectWithinTheTable(of, format, count, shift, FillNormal);
      }
    }
    ExpectWithinTheTable(of, format, 4095, 0, FillNormal);
    ExpectWithinTheTable(of, format, 4097, 1, FillNormal);
  });
}

TEST_P(OptimizerAccuracyTest, DenormalHugeAndTinyGradientsAreWithinTheTable) {
  ForAllCases([](const Case& of, const TileFormat& format) {
    ExpectWithinTheTable(of, format, 4097, 1, FillWide);
  });
}

}  // namespace
}  // namespace penstock::kernels
