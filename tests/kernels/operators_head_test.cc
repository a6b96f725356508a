// The language-model head: loss and gradients against an unchunked double-precision reference.
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

/// An odd vocabulary; bytes; and one so large that the rows need two chunks (128 and 22 rows).
const LayerShapes kShapes[] = {
    {.batch = 3, .sequence = 7, .width = 48, .heads = 1, .hidden = 48, .vocabulary = 257},
    {.batch = 2, .sequence = 33, .width = 48, .heads = 1, .hidden = 48, .vocabulary = 256},
    {.batch = 2, .sequence = 75, .width = 16, .heads = 1, .hidden = 16, .vocabulary = 4099},
};
/// Large enough for gradients in fp16, as a loss scale makes them.
constexpr double kGradientScale = 64;

struct Reference {
  double loss = 0;
  Values d_x;
  Values d_table;
};

Reference ReferenceHead(const LayerShapes& shapes, const Values& x, const Values& table,
                        const std::vector<int32_t>& targets) {
  const uint64_t width = shapes.width;
  Reference result{0, Values(x.size()), Values(table.size())};
  Values p(shapes.vocabulary);
  for (uint64_t row = 0; row < targets.size(); ++row) {
    double highest = -INFINITY;
    for (uint64_t v = 0; v < p.size(); ++v) {
      p[v] = 0;
      for (uint64_t c = 0; c < width; ++c) p[v] += x[row * width + c] * table[v * width + c];
      highest = std::max(highest, p[v]);
    }
    const auto target = static_cast<uint64_t>(targets[row]);
    const double target_logit = p[target] - highest;
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - highest);
    result.loss += std::log(sum) - target_logit;
    for (uint64_t v = 0; v < p.size(); ++v) {
      const double d = kGradientScale * (p[v] / sum - (v == target ? 1 : 0));
      for (uint64_t c = 0; c < width; ++c) {
        result.d_x[row * width + c] += d * table[v * width + c];
        result.d_table[v * width + c] += d * x[row * width + c];
      }
    }
  }
  return result;
}

std::vector<int32_t> RandomTargets(const LayerShapes& shapes) {
  std::vector<int32_t> targets(shapes.batch * shapes.sequence);
  for (uint64_t i = 0; i < targets.size(); ++i) {
    targets[i] = static_cast<int32_t>(RandomBits(9, i) % shapes.vocabulary);
  }
  targets.front() = 0;
  targets.back() = static_cast<int32_t>(shapes.vocabulary - 1);
  return targets;
}

class HeadTest : public OperatorsTest {
 protected:
  /// The gradient at the logits is rounded to 16 bits, so that its sums carry that of every term,
  /// also where the terms cancel each other.
  double gradient_tolerance() const {
    if (mode().dtype == DType::kFloat32) return kFloatTolerance;
    return (mode().dtype == DType::kBFloat16 ? 2 : 3) * tolerance();
  }
};

TEST_P(HeadTest, LossAndGradientsAgreeAndAccumulate) {
  for (const LayerShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const std::string name = "vocabulary " + std::to_string(shapes.vocabulary);
    const auto targets = RandomTargets(shapes);
    const Values x = Random(targets.size() * shapes.width, 1, 0.5);
    const Values table = Random(shapes.vocabulary * shapes.width, 2, 0.5);
    const Values before = RandomValues(DType::kFloat32, table.size(), 3);
    const Tensor device_x = harness.Put(x);
    const Tensor device_table = harness.Put(table);
    const auto device_targets = harness.PutIntegers(targets);
    auto loss = harness.PutDouble(100);
    const Tensor d_x = harness.Empty(x.size());
    const Tensor d_table = harness.Put(DType::kFloat32, before);
    const auto run = [&](std::byte* d_x_at, float* d_table_at) {
      harness.operators().HeadForwardBackward(
          harness.stream(), device_x.data(), device_table.data(), device_targets.as<int32_t>(),
          kGradientScale, loss.as<double>(), d_x_at, d_table_at);
      harness.Synchronize();
    };
    run(d_x.data(), d_table.floats());
    Reference want = ReferenceHead(shapes, x, table, targets);
    const double got_loss = harness.GetDouble(loss) - 100;
    EXPECT_NEAR(got_loss, want.loss, kFloatTolerance * want.loss) << name;
    for (size_t i = 0; i < before.size(); ++i) want.d_table[i] += before[i];
    ExpectClose(harness.Get(d_x), want.d_x, gradient_tolerance(), name + " d_x");
    ExpectClose(harness.Get(d_table), want.d_table, gradient_tolerance(), name + " d_table");

    loss = harness.PutDouble(100);
    run(nullptr, nullptr);
    EXPECT_EQ(harness.GetDouble(loss) - 100, got_loss) << name << ", without gradients";
  }
}

TEST_P(HeadTest, TheGradientMayReplaceTheInput) {
  for (const LayerShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const std::string name = "vocabulary " + std::to_string(shapes.vocabulary);
    const auto targets = RandomTargets(shapes);
    const Values x = Random(targets.size() * shapes.width, 1, 0.5);
    const Values table = Random(shapes.vocabulary * shapes.width, 2, 0.5);
    const Tensor x_then_d_x = harness.Put(x);
    const Tensor device_table = harness.Put(table);
    const auto device_targets = harness.PutIntegers(targets);
    const auto loss = harness.PutDouble(0);
    const Tensor d_table = harness.Zeros(DType::kFloat32, table.size());
    harness.operators().HeadForwardBackward(
        harness.stream(), x_then_d_x.data(), device_table.data(), device_targets.as<int32_t>(),
        kGradientScale, loss.as<double>(), x_then_d_x.data(), d_table.floats());
    const Reference want = ReferenceHead(shapes, x, table, targets);
    ExpectClose(harness.Get(x_then_d_x), want.d_x, gradient_tolerance(), name + " d_x");
    ExpectClose(harness.Get(d_table), want.d_table, gradient_tolerance(), name + " d_table");
    EXPECT_NEAR(harness.GetDouble(loss), want.loss, kFloatTolerance * want.loss) << name;
  }
}

TEST(HeadReferenceTest, GradientsAreDerivatives) {
  const LayerShapes shapes{.batch = 1, .sequence = 3, .width = 4, .vocabulary = 9};
  const auto targets = RandomTargets(shapes);
  const Values x = RandomValues(DType::kFloat32, 12, 1);
  const Values table = RandomValues(DType::kFloat32, 36, 2);
  const Reference at = ReferenceHead(shapes, x, table, targets);
  ExpectGradientOf(
      [&](const Values& v) {
        return kGradientScale * ReferenceHead(shapes, v, table, targets).loss;
      },
      x, at.d_x, "d_x");
  ExpectGradientOf(
      [&](const Values& v) { return kGradientScale * ReferenceHead(shapes, x, v, targets).loss; },
      table, at.d_table, "d_table");
}

TEST_P(HeadTest, TheLossIsFiniteForLargeLogitsAndNaNForNaN) {
  const LayerShapes shapes = kShapes[0];
  OperatorsHarness harness(mode(), shapes);
  const auto targets = RandomTargets(shapes);
  Values x = Random(targets.size() * shapes.width, 1, 100);
  const Tensor device_x = harness.Put(x);
  const Tensor device_table = harness.Put(Random(shapes.vocabulary * shapes.width, 2, 100));
  const auto device_targets = harness.PutIntegers(targets);
  const auto run = [&] {
    const auto loss = harness.PutDouble(0);
    harness.operators().HeadForwardBackward(harness.stream(), device_x.data(), device_table.data(),
                                            device_targets.as<int32_t>(), 1, loss.as<double>(),
                                            nullptr, nullptr);
    return harness.GetDouble(loss);
  };
  EXPECT_TRUE(std::isfinite(run()));
  x[5] = NAN;
  harness.Set(device_x, x);
  EXPECT_TRUE(std::isnan(run()));
}

/// Of equal logits, of which 64 and one may be those of two products. What they add to the gradient
/// of the input is halfway between two numbers without the last token's share, and nearer to the
/// upper one with it.
TEST_P(HeadTest, TheGradientOfTheInputIsRoundedOnce) {
  const LayerShapes shapes{
      .batch = 1, .sequence = 2, .width = 8, .heads = 1, .hidden = 8, .vocabulary = 65};
  OperatorsHarness harness(mode(), shapes);
  const double half = mode().dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  Values table(65 * 8, 0.0);
  for (uint64_t c = 0; c < 8; ++c) {
    table[8 + c] = 1;
    table[2 * 8 + c] = half;
    table[64 * 8 + c] = half / 16;
  }
  const Tensor x = harness.Put(Values(16, 0.0));
  const Tensor device_table = harness.Put(table);
  const auto targets = harness.PutIntegers({0, 0});
  const auto loss = harness.PutDouble(0);
  const Tensor d_x = harness.Empty(16);
  const Tensor d_table = harness.Zeros(DType::kFloat32, table.size());
  // Each token's probability, 1/65, becomes 1.
  harness.operators().HeadForwardBackward(harness.stream(), x.data(), device_table.data(),
                                          targets.as<int32_t>(), 65, loss.as<double>(), d_x.data(),
                                          d_table.floats());
  const double sum = 1 + half + half / 16;
  const bool single = mode().dtype == DType::kFloat32;
  ExpectClose(harness.Get(d_x), Values(16, single ? sum : 1 + 2 * half),
              single ? kFloatTolerance : 0, "d_x");
}

/// exp(200) is more than fp32 holds: what a product has in columns behind the vocabulary must not
/// reach a gradient.
TEST_P(HeadTest, LogitsFarBelowZeroHaveFiniteGradients) {
  const LayerShapes shapes{
      .batch = 1, .sequence = 2, .width = 8, .heads = 1, .hidden = 8, .vocabulary = 65};
  OperatorsHarness harness(mode(), shapes);
  const Tensor x = harness.Put(Values(16, 10.0));
  const Tensor table = harness.Put(Values(65 * 8, -2.5));
  const auto targets = harness.PutIntegers({0, 64});
  const auto loss = harness.PutDouble(0);
  const Tensor d_x = harness.Empty(16);
  const Tensor d_table = harness.Zeros(DType::kFloat32, 65 * 8);
  harness.operators().HeadForwardBackward(harness.stream(), x.data(), table.data(),
                                          targets.as<int32_t>(), 65, loss.as<double>(), d_x.data(),
                                          d_table.floats());
  EXPECT_NEAR(harness.GetDouble(loss), 2 * std::log(65.0), 1e-5);
  for (const double d : harness.Get(d_x)) EXPECT_NEAR(d, 0, 1e-3);
  // Two rows of 10, of which each token takes 1 and a target 65 less.
  Values want(65 * 8, 20.0);
  for (uint64_t c = 0; c < 8; ++c) want[c] = want[64 * 8 + c] = 20 - 650;
  ExpectClose(harness.Get(d_table), want, kFloatTolerance, "d_table");
}

INSTANTIATE_TEST_SUITE_P(Modes, HeadTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
