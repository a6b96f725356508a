// The maps of a layer and GELU against double-precision references; the references' gradients
// against differences of the references.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "tests/kernels/operators_layer_shapes.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

class LinearTest : public OperatorsTest {
 protected:
  /// Of a product and GELU behind it: in bf16 what lies between them is rounded as well.
  double thrice() const { return (mode().dtype == DType::kFloat32 ? 1 : 3) * tolerance(); }
};

/// x[rows, k] · w[k, n], with what is transposed stated by the strides of both.
Values ReferenceProduct(const Values& x, const Values& w, uint64_t rows, uint64_t n, uint64_t k,
                        uint64_t x_row, uint64_t x_column, uint64_t w_row, uint64_t w_column) {
  Values out(rows * n);
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < n; ++j) {
      for (uint64_t l = 0; l < k; ++l) {
        out[i * n + j] += x[i * x_row + l * x_column] * w[l * w_row + j * w_column];
      }
    }
  }
  return out;
}

double ReferenceGelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double ReferenceGeluDerivative(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

TEST_P(LinearTest, LinearForwardAddsBiasAndResidual) {
  for (const LayerShapes& shapes : kLayerShapes) {
    for (const bool residual : {false, true}) {
      OperatorsHarness harness(mode(), shapes);
      const uint64_t k = shapes.hidden;
      const uint64_t n = shapes.width;
      const Values x = Random(Rows(shapes) * k, 1);
      const Values w = Random(k * n, 2, 0.1);
      const Values bias = Random(n, 3);
      const Values addend = Random(Rows(shapes) * n, 4);
      const Tensor device_x = harness.Put(x);
      const Tensor device_w = harness.Put(w);
      const Tensor device_bias = harness.Put(bias);
      const Tensor device_addend = harness.Put(addend);
      const Tensor out = harness.Empty(addend.size());
      harness.operators().LinearForward(
          harness.stream(), device_x.data(), device_w.data(), device_bias.data(),
          residual ? device_addend.data() : nullptr, k, n, out.data());
      Values want = ReferenceProduct(x, w, Rows(shapes), n, k, k, 1, n, 1);
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] += bias[i % n] + (residual ? addend[i] : 0);
      }
      ExpectClose(harness.Get(out), want, tolerance(), "out");
      EXPECT_EQ(harness.Get(device_addend), addend);
    }
  }
}

/// As far behind an aligned address as the sizes of a layer's tensors allow: two bytes, too.
TEST_P(LinearTest, WeightsAndBiasesMayLieBehindTensorsOfOddSizes) {
  for (const LayerShapes& shapes : kLayerShapes) {
    const uint64_t behind = std::gcd(shapes.width, shapes.hidden);
    OperatorsHarness harness(mode(), shapes);
    const auto put = [&](const Values& values) {
      Values moved(behind, 1e3);
      moved.insert(moved.end(), values.begin(), values.end());
      return harness.Put(moved);
    };
    for (const auto& [k, n] :
         {std::pair(shapes.hidden, shapes.width), std::pair(shapes.width, shapes.hidden)}) {
      const Values x = Random(Rows(shapes) * k, 1);
      const Values w = Random(k * n, 2, 0.1);
      const Values bias = Random(n, 3);
      const Values d_out = Random(Rows(shapes) * n, 4);
      const Tensor device_x = harness.Put(x);
      const Tensor device_w = put(w);
      const Tensor device_bias = put(bias);
      const Tensor device_d_out = harness.Put(d_out);
      const Tensor out = harness.Empty(Rows(shapes) * n);
      const Tensor d_x = harness.Empty(x.size());
      const Tensor d_w = harness.Zeros(DType::kFloat32, behind + k * n);
      const Tensor d_bias = harness.Zeros(DType::kFloat32, behind + n);
      const uint64_t bytes = behind * SizeOf(mode().dtype).value;
      LayerOperators op = harness.operators();
      op.LinearForward(harness.stream(), device_x.data(), device_w.data() + bytes,
                       device_bias.data() + bytes, nullptr, k, n, out.data());
      op.LinearBackwardInput(harness.stream(), device_d_out.data(), device_w.data() + bytes, k, n,
                             d_x.data());
      op.LinearBackwardWeight(harness.stream(), device_x.data(), device_d_out.data(), k, n,
                              d_w.floats() + behind, d_bias.floats() + behind);
      Values want = ReferenceProduct(x, w, Rows(shapes), n, k, k, 1, n, 1);
      for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % n];
      ExpectClose(harness.Get(out), want, tolerance(), "out");
      if (n == shapes.hidden) {
        const Tensor pre = harness.Empty(Rows(shapes) * n);
        op.LinearGeluForward(harness.stream(), device_x.data(), device_w.data() + bytes,
                             device_bias.data() + bytes, pre.data(), out.data());
        ExpectClose(harness.Get(pre), want, tolerance(), "pre");
        for (double& value : want) value = ReferenceGelu(value);
        ExpectClose(harness.Get(out), want, thrice(), "gelu");
      }
      Values want_d_x = ReferenceProduct(d_out, w, Rows(shapes), k, n, n, 1, 1, n);
      ExpectClose(harness.Get(d_x), want_d_x, tolerance(), "d_x");
      if (k == shapes.hidden) {
        op.LinearGeluBackwardInput(harness.stream(), device_d_out.data(), device_w.data() + bytes,
                                   device_x.data(), d_x.data());
        for (size_t i = 0; i < x.size(); ++i) want_d_x[i] *= ReferenceGeluDerivative(x[i]);
        ExpectClose(harness.Get(d_x), want_d_x, thrice(), "d_pre");
      }
      Values want_d_w = ReferenceProduct(x, d_out, k, n, Rows(shapes), 1, k, n, 1);
      want_d_w.insert(want_d_w.begin(), behind, 0.0);
      ExpectClose(harness.Get(d_w), want_d_w, kFloatTolerance, "d_weight");
    }
  }
}

TEST_P(LinearTest, LinearBackwardAgreesAndAccumulates) {
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t k = shapes.width;
    const uint64_t n = 3 * shapes.width;
    const uint64_t rows = Rows(shapes);
    const Values x = Random(rows * k, 1);
    const Values w = Random(k * n, 2);
    const Values d_out = Random(rows * n, 3);
    const Values weight_before = RandomValues(DType::kFloat32, k * n, 4);
    const Values bias_before = RandomValues(DType::kFloat32, n, 5);
    const Tensor device_x = harness.Put(x);
    const Tensor device_w = harness.Put(w);
    const Tensor device_d_out = harness.Put(d_out);
    const Tensor d_x = harness.Empty(x.size());
    const Tensor d_w = harness.Put(DType::kFloat32, weight_before);
    const Tensor d_bias = harness.Put(DType::kFloat32, bias_before);
    harness.operators().LinearBackwardInput(harness.stream(), device_d_out.data(), device_w.data(),
                                            k, n, d_x.data());
    harness.operators().LinearBackwardWeight(harness.stream(), device_x.data(), device_d_out.data(),
                                             k, n, d_w.floats(), d_bias.floats());
    Values want_w = ReferenceProduct(x, d_out, k, n, rows, 1, k, n, 1);
    for (size_t i = 0; i < want_w.size(); ++i) want_w[i] += weight_before[i];
    Values want_bias = bias_before;
    for (size_t i = 0; i < d_out.size(); ++i) want_bias[i % n] += d_out[i];
    ExpectClose(harness.Get(d_x), ReferenceProduct(d_out, w, rows, k, n, n, 1, 1, n), tolerance(),
                "d_x");
    ExpectClose(harness.Get(d_w), want_w, kFloatTolerance, "d_w");
    ExpectClose(harness.Get(d_bias), want_bias, kFloatTolerance, "d_bias");
  }
}

TEST(LinearReferenceTest, LinearGradientsAreDerivatives) {
  const uint64_t rows = 3;
  const uint64_t k = 5;
  const uint64_t n = 4;
  const Values x = RandomValues(DType::kFloat32, rows * k, 1);
  const Values w = RandomValues(DType::kFloat32, k * n, 2);
  const Values d_out = RandomValues(DType::kFloat32, rows * n, 3);
  const auto loss = [&](const Values& x_at, const Values& w_at) {
    return Dot(ReferenceProduct(x_at, w_at, rows, n, k, k, 1, n, 1), d_out);
  };
  ExpectGradientOf([&](const Values& v) { return loss(v, w); }, x,
                   ReferenceProduct(d_out, w, rows, k, n, n, 1, 1, n), "d_x");
  ExpectGradientOf([&](const Values& v) { return loss(x, v); }, w,
                   ReferenceProduct(x, d_out, k, n, rows, 1, k, n, 1), "d_w");
}

using LinearDeathTest = OneModeTest;

TEST_F(LinearDeathTest, AShapeThatTheLayerHasNotIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  OperatorsHarness harness(mode_, kLayerShapes[2]);
  const Tensor any = harness.Empty(DType::kFloat32, 1);
  EXPECT_DEATH(harness.operators().LinearForward(harness.stream(), any.data(), any.data(),
                                                 any.data(), nullptr, 16, 40, any.data()),
               "16 x 40 is no map of the layer");
}

/// From -12 to 12 and beyond: every regime of the exponential.
Values GeluArguments(DType dtype, uint64_t n) {
  Values x(n);
  for (uint64_t i = 0; i < n; ++i) {
    x[i] = RoundTo(dtype, -12 + 24 * static_cast<double>(i) / static_cast<double>(n));
  }
  const double far = dtype == DType::kFloat16 ? 6e4 : 3e5;
  x[0] = RoundTo(dtype, -far);
  x[1] = RoundTo(dtype, far);
  return x;
}

/// A matrix that is zero but for its first column.
Values FirstColumn(uint64_t rows, uint64_t columns, const Values& values) {
  Values matrix(rows * columns, 0.0);
  for (uint64_t r = 0; r < rows; ++r) matrix[r * columns] = values[r];
  return matrix;
}

/// How wrong the tanh in GELU may be, besides its rounding. An emulated product takes the host's.
double TanhError(const OperatorsHarness& harness, const Mode& mode) {
  const std::string arithmetic = harness.operators().arithmetic();
  const bool known = arithmetic.find("emulated") != std::string::npos;
  return arithmetic.find("GELU") != std::string::npos && !known ? mode.fused_tanh_error : 0;
}
/// What becomes of that: GELU's derivative by the tanh is x/2, and its derivative's is at most
/// this.
double GeluError(double x, double tanh_error) { return 1e-6 + std::abs(x) / 2 * tanh_error; }
double GeluDerivativeError(double x, double tanh_error) {
  const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 1e-6 + (0.5 + std::abs(x) * slope) * tanh_error;
}

TEST_P(LinearTest, GeluAgreesElementByElement) {
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t rows = Rows(shapes);
    // Each row of x picks a row of weights, so that GELU sees chosen arguments.
    const Values arguments = GeluArguments(mode().dtype, shapes.width * shapes.hidden);
    Values picks(rows * shapes.width, 0.0);
    for (uint64_t r = 0; r < rows; ++r) picks[r * shapes.width + r % shapes.width] = 1;
    const Tensor x = harness.Put(picks);
    const Tensor device_weight = harness.Put(arguments);
    const Tensor bias = harness.Put(Values(shapes.hidden, 0.0));
    const Tensor pre = harness.Empty(rows * shapes.hidden);
    const Tensor out = harness.Empty(rows * shapes.hidden);
    harness.operators().LinearGeluForward(harness.stream(), x.data(), device_weight.data(),
                                          bias.data(), pre.data(), out.data());
    Values at;
    for (uint64_t i = 0; i < rows * shapes.hidden; ++i) {
      at.push_back(arguments[i % arguments.size()]);
    }
    EXPECT_EQ(harness.Get(pre), at);
    const Values got = harness.Get(out);
    const double tanh_error = TanhError(harness, mode());
    for (size_t i = 0; i < at.size(); ++i) {
      const double want = ReferenceGelu(at[i]);
      ASSERT_NEAR(
          got[i], want,
          tolerance() * std::abs(want) + GeluError(at[i], tanh_error) + HalfSpacing(mode().dtype))
          << at[i];
    }
  }
}

TEST_P(LinearTest, TheGradientOfGeluAgreesElementByElement) {
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t rows = Rows(shapes);
    const Values at = GeluArguments(mode().dtype, rows * shapes.hidden);
    const Values d_out = Random(rows, 2);
    const Tensor device_d_out = harness.Put(FirstColumn(rows, shapes.width, d_out));
    const Tensor weight =
        harness.Put(FirstColumn(shapes.hidden, shapes.width, Values(shapes.hidden, 1.0)));
    const Tensor pre = harness.Put(at);
    const Tensor d_pre = harness.Empty(at.size());
    harness.operators().LinearGeluBackwardInput(harness.stream(), device_d_out.data(),
                                                weight.data(), pre.data(), d_pre.data());
    const Values got = harness.Get(d_pre);
    const double tanh_error = TanhError(harness, mode());
    for (size_t i = 0; i < at.size(); ++i) {
      const double scale = d_out[i / shapes.hidden];
      const double want = scale * ReferenceGeluDerivative(at[i]);
      const double error = std::max(1.0, std::abs(scale)) * GeluDerivativeError(at[i], tanh_error) +
                           HalfSpacing(mode().dtype);
      ASSERT_NEAR(got[i], want, tolerance() * std::abs(want) + error) << at[i];
    }
    EXPECT_EQ(harness.Get(pre), at);
  }
}

TEST_P(LinearTest, LinearAndGeluAgreeWithTheReference) {
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t rows = Rows(shapes);
    const uint64_t width = shapes.width;
    const uint64_t hidden = shapes.hidden;
    const Values x = Random(rows * width, 1);
    const Values weight = Random(width * hidden, 2, 0.1);
    const Values bias = Random(hidden, 3);
    const Tensor device_x = harness.Put(x);
    const Tensor device_weight = harness.Put(weight);
    const Tensor device_bias = harness.Put(bias);
    const Tensor pre = harness.Empty(rows * hidden);
    const Tensor out = harness.Empty(rows * hidden);
    const Tensor d_pre = harness.Empty(rows * hidden);
    LayerOperators op = harness.operators();
    op.LinearGeluForward(harness.stream(), device_x.data(), device_weight.data(),
                         device_bias.data(), pre.data(), out.data());
    // x is a gradient as good as any, and the weights are the second map's, of another shape.
    op.LinearGeluBackwardInput(harness.stream(), device_x.data(), device_weight.data(), pre.data(),
                               d_pre.data());
    Values want_pre = ReferenceProduct(x, weight, rows, hidden, width, width, 1, hidden, 1);
    Values want_out,
        want_d_pre = ReferenceProduct(x, weight, rows, hidden, width, width, 1, 1, width);
    for (size_t i = 0; i < want_pre.size(); ++i) {
      want_pre[i] += bias[i % hidden];
      want_out.push_back(ReferenceGelu(want_pre[i]));
      want_d_pre[i] *= ReferenceGeluDerivative(want_pre[i]);
    }
    ExpectClose(harness.Get(pre), want_pre, tolerance(), "pre");
    ExpectClose(harness.Get(out), want_out, thrice(), "out");
    ExpectClose(harness.Get(d_pre), want_d_pre, thrice(), "d_pre");
  }
}

TEST(LinearReferenceTest, GeluDerivativeIsTheDerivative) {
  const Values x = RandomValues(DType::kFloat32, 19, 1, 3);
  Values derivative;
  for (const double value : x) derivative.push_back(ReferenceGeluDerivative(value));
  ExpectGradientOf(
      [&](const Values& v) {
        double sum = 0;
        for (const double value : v) sum += ReferenceGelu(value);
        return sum;
      },
      x, derivative, "gelu");
}

TEST_P(LinearTest, GeluLosesNoNaN) {
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t rows = Rows(shapes);
    const uint64_t n = rows * shapes.hidden;
    Values x = Random(rows * shapes.width, 1);
    x[x.size() - 1] = NAN;  // the whole last row
    Values at = Random(n, 2);
    at[n - 1] = NAN;
    at[3] = NAN;
    const Tensor device_x = harness.Put(x);
    const Tensor weight = harness.Put(Random(shapes.width * shapes.hidden, 3));
    const Tensor bias = harness.Put(Random(shapes.hidden, 4));
    const Tensor pre = harness.Empty(n);
    const Tensor out = harness.Empty(n);
    const Tensor d_out = harness.Put(Random(rows * shapes.width, 5));
    const Tensor device_at = harness.Put(at);
    const Tensor d_at = harness.Empty(n);
    harness.operators().LinearGeluForward(harness.stream(), device_x.data(), weight.data(),
                                          bias.data(), pre.data(), out.data());
    harness.operators().LinearGeluBackwardInput(harness.stream(), d_out.data(), weight.data(),
                                                device_at.data(), d_at.data());
    const Values got = harness.Get(out);
    const Values got_d = harness.Get(d_at);
    for (uint64_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::isnan(got[i]), i >= n - shapes.hidden) << i;
      ASSERT_EQ(std::isnan(got_d[i]), std::isnan(at[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LinearTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
