// Calls of several shapes and dtypes on the same operators, and the scratch that each says it
// needs.
#include <algorithm>
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr LayerShapes kWide{
    .batch = 2, .sequence = 9, .width = 48, .heads = 3, .hidden = 80, .vocabulary = 257};
constexpr LayerShapes kLong{
    .batch = 1, .sequence = 35, .width = 24, .heads = 2, .hidden = 56, .vocabulary = 31};

/// Both layers' calls; weights of either lie at multiples of 8 elements.
OperatorOptions Both(DType dtype) {
  OperatorOptions options{.calls = LayerCalls(dtype, kWide), .weight_unit = 8, .threads = 2};
  const OperatorCalls others = LayerCalls(dtype, kLong);
  options.calls.insert(options.calls.end(), others.begin(), others.end());
  return options;
}

class CallsTest : public OperatorsTest {
 protected:
  /// Some of what a layer of `shapes` computes, on operators that were made for `options`.
  std::vector<std::byte> Compute(const LayerShapes& shapes, const OperatorOptions& options) {
    DeviceHarness harness;
    const auto operators = CreateTestedOperators(harness.device(), mode(), options).value();
    LayerOperators op(*operators, mode().dtype, shapes);
    const uint64_t rows = Rows(shapes);
    const auto put = [&](uint64_t n, uint64_t seed) {
      return harness.Put(mode().dtype, Random(n, seed));
    };
    const auto empty = [&](uint64_t n) { return harness.Empty(mode().dtype, n); };
    const Tensor x = put(rows * shapes.width, 1);
    const Tensor weight = put(shapes.width * std::max(3 * shapes.width, shapes.hidden), 2);
    const Tensor bias = put(std::max(3 * shapes.width, shapes.hidden), 3);
    const Tensor qkv = empty(rows * 3 * shapes.width);
    const Tensor attended = empty(rows * shapes.width);
    const Tensor pre = empty(rows * shapes.hidden);
    const Tensor hidden = empty(rows * shapes.hidden);
    const Tensor d_weight = harness.Zeros(DType::kFloat32, shapes.width * 3 * shapes.width);
    const Tensor d_bias = harness.Zeros(DType::kFloat32, 3 * shapes.width);
    op.LinearForward(harness.stream(), x.data(), weight.data(), bias.data(), nullptr, shapes.width,
                     3 * shapes.width, qkv.data());
    op.AttentionForward(harness.stream(), qkv.data(), attended.data());
    op.LinearGeluForward(harness.stream(), attended.data(), weight.data(), bias.data(), pre.data(),
                         hidden.data());
    op.LinearBackwardWeight(harness.stream(), attended.data(), qkv.data(), shapes.width,
                            3 * shapes.width, d_weight.floats(), d_bias.floats());
    std::vector<std::byte> results;
    for (const Tensor* tensor : {&qkv, &attended, &pre, &hidden, &d_weight, &d_bias}) {
      const auto bytes = harness.GetBytes(*tensor);
      results.insert(results.end(), bytes.begin(), bytes.end());
    }
    return results;
  }
};

TEST_P(CallsTest, OneSetOfOperatorsComputesEveryDeclaredShapeAsOneMadeForItAlone) {
  for (const LayerShapes& shapes : {kWide, kLong}) {
    EXPECT_EQ(Compute(shapes, Both(mode().dtype)),
              Compute(shapes, LayerOptions(mode().dtype, shapes, 2)));
  }
}

TEST_P(CallsTest, ScratchIsTheMostThatOneCallNeeds) {
  const OperatorOptions both = Both(mode().dtype);
  Bytes most;
  for (const OperatorCall& call : both.calls) {
    most = std::max(most, TestedScratch(mode(), {.calls = {call}, .threads = 2}).value());
  }
  EXPECT_EQ(TestedScratch(mode(), both).value(), most);
  OperatorOptions twice = both;
  twice.calls.insert(twice.calls.end(), both.calls.begin(), both.calls.end());
  EXPECT_EQ(TestedScratch(mode(), twice).value(), most) << "calls are made one at a time";
}

INSTANTIATE_TEST_SUITE_P(Modes, CallsTest, AllModes(), ModeName);

using CallsDeathTest = OneModeTest;

TEST_F(CallsDeathTest, TensorsThatDoNotFitTogetherAreABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  DeviceHarness harness;
  const auto operators =
      CreateTestedOperators(harness.device(), mode_, LayerOptions(mode_.dtype, kWide)).value();
  const Tensor any = harness.Empty(mode_.dtype, 1);
  const auto view = [&](const Shape& shape, DType dtype) {
    return TensorView{dtype, shape, any.data()};
  };
  const uint64_t rows = Rows(kWide);
  const DType dtype = mode_.dtype;
  const TensorView x = view({rows, 48}, dtype);
  const TensorView bias = view({80}, dtype);
  EXPECT_DEATH(operators->LinearForward(harness.stream(), x, view({47, 80}, dtype), bias, {},
                                        view({rows, 80}, dtype)),
               "47, 80. where .* .48, 80. is needed");
  EXPECT_DEATH(operators->LinearForward(harness.stream(), x, view({48, 80}, DType::kFloat16), bias,
                                        {}, view({rows, 80}, dtype)),
               "fp16 .48, 80. where");
  EXPECT_DEATH(operators->LinearForward(harness.stream(), x, view({48, 80}, dtype), bias,
                                        view({rows, 80}, dtype), view({rows, 80}, dtype)),
               "the residual lies where the output does");
  EXPECT_DEATH(operators->AttentionForward(harness.stream(), 4, view({2, 9, 3 * 48}, dtype),
                                           view({2, 9, 48}, dtype)),
               "shapes were not declared")
      << "four heads where three were declared";
}

}  // namespace
}  // namespace penstock::kernels
