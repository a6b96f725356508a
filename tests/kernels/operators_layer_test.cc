// Embedding, layer norm, linear layers and GELU against double-precision references; the
// references' gradients against differences of the references.
#include <numeric>
#include <utility>
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr float kEps = 1e-5f;

/// Odd lengths; a width that no vector divides into whole lines; one of which a GPU's block of
/// threads makes more than one pass.
const OperatorShapes kShapes[] = {
    {.batch = 1, .sequence = 1, .width = 48, .heads = 1, .hidden = 192, .vocabulary = 257},
    {.batch = 3, .sequence = 7, .width = 45, .heads = 3, .hidden = 101, .vocabulary = 257},
    {.batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 192, .vocabulary = 256},
    {.batch = 1, .sequence = 5, .width = 261, .heads = 9, .hidden = 24, .vocabulary = 11},
};

uint64_t Rows(const OperatorShapes& shapes) { return shapes.batch * shapes.sequence; }

using LayerTest = OperatorsTest;

std::vector<int32_t> RandomTokens(uint64_t n, uint64_t vocabulary) {
  std::vector<int32_t> tokens(n);
  for (uint64_t i = 0; i < n; ++i) {
    // Few different ones, so that rows meet in the gradient.
    tokens[i] = static_cast<int32_t>(RandomBits(9, i) % 5 * (vocabulary / 5));
  }
  tokens.back() = static_cast<int32_t>(vocabulary - 1);
  return tokens;
}

TEST_P(LayerTest, EmbeddingAddsTokenAndPosition) {
  for (const OperatorShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t width = shapes.width;
    const auto tokens = RandomTokens(Rows(shapes), shapes.vocabulary);
    const Values table = Random(shapes.vocabulary * width, 1);
    const Values positions = Random(shapes.sequence * width, 2);
    const auto device_tokens = harness.PutIntegers(tokens);
    const Tensor device_table = harness.Put(table);
    const Tensor device_positions = harness.Put(positions);
    const Tensor out = harness.Empty(Rows(shapes) * width);
    harness.operators().EmbeddingForward(harness.stream(), device_tokens.as<int32_t>(),
                                         device_table.data(), device_positions.data(), out.data());
    Values want;
    for (uint64_t r = 0; r < Rows(shapes); ++r) {
      for (uint64_t c = 0; c < width; ++c) {
        want.push_back(RoundTo(mode().dtype, table[static_cast<uint64_t>(tokens[r]) * width + c] +
                                                 positions[r % shapes.sequence * width + c]));
      }
    }
    EXPECT_EQ(harness.Get(out), want);
  }
}

TEST_P(LayerTest, EmbeddingBackwardAddsRowsInTheirOrder) {
  for (const OperatorShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t width = shapes.width;
    const auto tokens = RandomTokens(Rows(shapes), shapes.vocabulary);
    const Values d_out = Random(Rows(shapes) * width, 1);
    Values d_table = RandomValues(DType::kFloat32, shapes.vocabulary * width, 2);
    Values d_positions = RandomValues(DType::kFloat32, shapes.sequence * width, 3);
    const auto device_tokens = harness.PutIntegers(tokens);
    const Tensor device_d_out = harness.Put(d_out);
    const Tensor device_d_table = harness.Put(DType::kFloat32, d_table);
    const Tensor device_d_positions = harness.Put(DType::kFloat32, d_positions);
    harness.operators().EmbeddingBackward(harness.stream(), device_tokens.as<int32_t>(),
                                          device_d_out.data(), device_d_table.floats(),
                                          device_d_positions.floats());
    for (uint64_t r = 0; r < Rows(shapes); ++r) {
      for (uint64_t c = 0; c < width; ++c) {
        const auto add = [&](double& sum) {
          sum = static_cast<float>(sum) + static_cast<float>(d_out[r * width + c]);
        };
        add(d_table[static_cast<uint64_t>(tokens[r]) * width + c]);
        add(d_positions[r % shapes.sequence * width + c]);
      }
    }
    EXPECT_EQ(harness.Get(device_d_table), d_table);
    EXPECT_EQ(harness.Get(device_d_positions), d_positions);
  }
}

struct Norm {
  Values out, mean, rstd;
};

Norm ReferenceNorm(const Values& x, const Values& weight, const Values& bias) {
  const uint64_t width = weight.size();
  Norm norm;
  for (uint64_t start = 0; start < x.size(); start += width) {
    double mean = 0;
    double variance = 0;
    for (uint64_t c = 0; c < width; ++c) mean += x[start + c] / static_cast<double>(width);
    for (uint64_t c = 0; c < width; ++c) {
      variance += std::pow(x[start + c] - mean, 2) / static_cast<double>(width);
    }
    const double rstd = 1 / std::sqrt(variance + kEps);
    for (uint64_t c = 0; c < width; ++c) {
      norm.out.push_back((x[start + c] - mean) * rstd * weight[c] + bias[c]);
    }
    norm.mean.push_back(mean);
    norm.rstd.push_back(rstd);
  }
  return norm;
}

struct NormGradients {
  Values d_x, d_weight, d_bias;
};

NormGradients ReferenceNormBackward(const Values& x, const Values& weight, const Norm& norm,
                                    const Values& d_out) {
  const uint64_t width = weight.size();
  NormGradients d{Values(x.size()), Values(width), Values(width)};
  for (uint64_t row = 0; row < norm.mean.size(); ++row) {
    const auto normal = [&](uint64_t c) {
      return (x[row * width + c] - norm.mean[row]) * norm.rstd[row];
    };
    double mean_g = 0;
    double mean_gn = 0;
    for (uint64_t c = 0; c < width; ++c) {
      const double g = d_out[row * width + c];
      d.d_bias[c] += g;
      d.d_weight[c] += g * normal(c);
      mean_g += g * weight[c] / static_cast<double>(width);
      mean_gn += g * weight[c] * normal(c) / static_cast<double>(width);
    }
    for (uint64_t c = 0; c < width; ++c) {
      d.d_x[row * width + c] =
          norm.rstd[row] * (d_out[row * width + c] * weight[c] - mean_g - normal(c) * mean_gn);
    }
  }
  return d;
}

TEST_P(LayerTest, LayerNormForwardAgrees) {
  for (const OperatorShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    // A mean far from zero: the variance must not be a difference of large numbers.
    Values x = Random(Rows(shapes) * shapes.width, 1);
    for (double& value : x) value = RoundTo(mode().dtype, value + 20);
    const Values weight = Random(shapes.width, 2);
    const Values bias = Random(shapes.width, 3);
    const Tensor out = harness.Empty(x.size());
    const Tensor mean = harness.Empty(DType::kFloat32, Rows(shapes));
    const Tensor rstd = harness.Empty(DType::kFloat32, Rows(shapes));
    const Tensor device_x = harness.Put(x);
    const Tensor device_weight = harness.Put(weight);
    const Tensor device_bias = harness.Put(bias);
    harness.operators().LayerNormForward(harness.stream(), device_x.data(), device_weight.data(),
                                         device_bias.data(), kEps, out.data(), mean.floats(),
                                         rstd.floats());
    const Norm want = ReferenceNorm(x, weight, bias);
    ExpectClose(harness.Get(out), want.out, tolerance(), "out");
    ExpectClose(harness.Get(mean), want.mean, kFloatTolerance, "mean");
    ExpectClose(harness.Get(rstd), want.rstd, kFloatTolerance, "rstd");
  }
}

TEST_P(LayerTest, LayerNormBackwardAgreesAndAccumulates) {
  for (const OperatorShapes& shapes : kShapes) {
    for (const bool add_to_d_x : {false, true}) {
      OperatorsHarness harness(mode(), shapes);
      const Values x = Random(Rows(shapes) * shapes.width, 1);
      const Values weight = Random(shapes.width, 2);
      const Values d_out = Random(x.size(), 4);
      const Values before = Random(x.size(), 5);
      const Values weight_before = RandomValues(DType::kFloat32, shapes.width, 6);
      const Norm norm = ReferenceNorm(x, weight, Values(shapes.width));
      const Tensor device_x = harness.Put(x);
      const Tensor device_weight = harness.Put(weight);
      const Tensor mean = harness.Put(DType::kFloat32, norm.mean);
      const Tensor rstd = harness.Put(DType::kFloat32, norm.rstd);
      const Tensor device_d_out = harness.Put(d_out);
      const Tensor d_x = harness.Put(before);
      const Tensor d_weight = harness.Put(DType::kFloat32, weight_before);
      const Tensor d_bias = harness.Put(DType::kFloat32, weight_before);
      harness.operators().LayerNormBackward(
          harness.stream(), device_x.data(), device_weight.data(), mean.floats(), rstd.floats(),
          device_d_out.data(), add_to_d_x, d_x.data(), d_weight.floats(), d_bias.floats());
      NormGradients want = ReferenceNormBackward(x, weight, norm, d_out);
      for (size_t i = 0; add_to_d_x && i < x.size(); ++i) want.d_x[i] += before[i];
      for (size_t i = 0; i < weight.size(); ++i) {
        want.d_weight[i] += weight_before[i];
        want.d_bias[i] += weight_before[i];
      }
      ExpectClose(harness.Get(d_x), want.d_x, tolerance(), "d_x");
      ExpectClose(harness.Get(d_weight), want.d_weight, kFloatTolerance, "d_weight");
      ExpectClose(harness.Get(d_bias), want.d_bias, kFloatTolerance, "d_bias");
    }
  }
}

TEST(LayerReferenceTest, LayerNormGradientsAreDerivatives) {
  const uint64_t width = 12;
  const Values x = RandomValues(DType::kFloat32, 3 * width, 1);
  const Values weight = RandomValues(DType::kFloat32, width, 2);
  const Values bias = RandomValues(DType::kFloat32, width, 3);
  const Values d_out = RandomValues(DType::kFloat32, x.size(), 4);
  const NormGradients d = ReferenceNormBackward(x, weight, ReferenceNorm(x, weight, bias), d_out);
  ExpectGradientOf([&](const Values& v) { return Dot(ReferenceNorm(v, weight, bias).out, d_out); },
                   x, d.d_x, "d_x");
  ExpectGradientOf([&](const Values& v) { return Dot(ReferenceNorm(x, v, bias).out, d_out); },
                   weight, d.d_weight, "d_weight");
  ExpectGradientOf([&](const Values& v) { return Dot(ReferenceNorm(x, weight, v).out, d_out); },
                   bias, d.d_bias, "d_bias");
}

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

enum class Residual { kNone, kSeparate, kInPlace };

TEST_P(LayerTest, LinearForwardAddsBiasAndResidual) {
  for (const OperatorShapes& shapes : kShapes) {
    for (const Residual residual : {Residual::kNone, Residual::kSeparate, Residual::kInPlace}) {
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
      const Tensor apart = harness.Empty(addend.size());
      const Tensor& out = residual == Residual::kInPlace ? device_addend : apart;
      harness.operators().LinearForward(
          harness.stream(), device_x.data(), device_w.data(), device_bias.data(),
          residual == Residual::kNone ? nullptr : device_addend.data(), k, n, out.data());
      Values want = ReferenceProduct(x, w, Rows(shapes), n, k, k, 1, n, 1);
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] += bias[i % n] + (residual == Residual::kNone ? 0 : addend[i]);
      }
      ExpectClose(harness.Get(out), want, tolerance(), "out");
      if (residual == Residual::kSeparate) {
        EXPECT_EQ(harness.Get(device_addend), addend);
      }
    }
  }
}

/// As far behind an aligned address as the sizes of a layer's tensors allow: two bytes, too.
TEST_P(LayerTest, WeightsAndBiasesMayLieBehindTensorsOfOddSizes) {
  for (const OperatorShapes& shapes : kShapes) {
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
      Operators& op = harness.operators();
      op.LinearForward(harness.stream(), device_x.data(), device_w.data() + bytes,
                       device_bias.data() + bytes, nullptr, k, n, out.data());
      op.LinearBackwardInput(harness.stream(), device_d_out.data(), device_w.data() + bytes, k, n,
                             d_x.data());
      op.LinearBackwardWeight(harness.stream(), device_x.data(), device_d_out.data(), k, n,
                              d_w.floats() + behind, d_bias.floats() + behind);
      Values want = ReferenceProduct(x, w, Rows(shapes), n, k, k, 1, n, 1);
      for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % n];
      ExpectClose(harness.Get(out), want, tolerance(), "out");
      ExpectClose(harness.Get(d_x), ReferenceProduct(d_out, w, Rows(shapes), k, n, n, 1, 1, n),
                  tolerance(), "d_x");
      Values want_d_w = ReferenceProduct(x, d_out, k, n, Rows(shapes), 1, k, n, 1);
      want_d_w.insert(want_d_w.begin(), behind, 0.0);
      ExpectClose(harness.Get(d_w), want_d_w, kFloatTolerance, "d_weight");
    }
  }
}

TEST_P(LayerTest, LinearBackwardAgreesAndAccumulates) {
  for (const OperatorShapes& shapes : kShapes) {
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

TEST(LayerReferenceTest, LinearGradientsAreDerivatives) {
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

using LayerDeathTest = OneModeTest;

TEST_F(LayerDeathTest, AShapeThatTheLayerHasNotIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  OperatorsHarness harness(mode_, kShapes[2]);
  const Tensor any = harness.Empty(DType::kFloat32, 1);
  EXPECT_DEATH(harness.operators().LinearForward(harness.stream(), any.data(), any.data(),
                                                 any.data(), nullptr, 16, 40, any.data()),
               "16 x 40 is no map of the layer");
}

double ReferenceGelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double ReferenceGeluDerivative(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// From -12 to 12 and beyond: every regime of the exponential.
Values GeluArguments(DType dtype, uint64_t n) {
  Values x(n);
  for (uint64_t i = 0; i < n; ++i) {
    x[i] = RoundTo(dtype, -12 + 24 * static_cast<double>(i) / static_cast<double>(n));
  }
  x[0] = RoundTo(dtype, -3e5);
  x[1] = RoundTo(dtype, 3e5);
  return x;
}

TEST_P(LayerTest, GeluForwardAndBackwardAgreeElementByElement) {
  for (const OperatorShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const uint64_t n = Rows(shapes) * shapes.hidden;
    const Values x = GeluArguments(mode().dtype, n);
    const Values d_out = Random(n, 2);
    const Tensor device_x = harness.Put(x);
    const Tensor out = harness.Empty(n);
    const Tensor d_x = harness.Empty(n);
    const Tensor in_place = harness.Put(d_out);
    const Tensor device_d_out = harness.Put(d_out);
    harness.operators().GeluForward(harness.stream(), device_x.data(), out.data());
    harness.operators().GeluBackward(harness.stream(), device_x.data(), device_d_out.data(),
                                     d_x.data());
    harness.operators().GeluBackward(harness.stream(), device_x.data(), in_place.data(),
                                     in_place.data());
    const Values got = harness.Get(out);
    const Values got_d = harness.Get(d_x);
    for (uint64_t i = 0; i < n; ++i) {
      // Relative to the value itself (no rms); 1e-6 absolute is for the far tails.
      const double want = ReferenceGelu(x[i]);
      const double want_d = d_out[i] * ReferenceGeluDerivative(x[i]);
      ASSERT_NEAR(got[i], want, tolerance() * std::abs(want) + 1e-6) << x[i];
      ASSERT_NEAR(got_d[i], want_d, tolerance() * std::abs(want_d) + 1e-6) << x[i];
    }
    EXPECT_EQ(harness.GetBytes(in_place), harness.GetBytes(d_x));
  }
}

TEST(LayerReferenceTest, GeluDerivativeIsTheDerivative) {
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

TEST_P(LayerTest, NaNIsNeverLost) {
  const OperatorShapes shapes = kShapes[1];
  OperatorsHarness harness(mode(), shapes);
  const uint64_t n = Rows(shapes) * shapes.hidden;
  Values x = Random(n, 1);
  x[n - 1] = NAN;
  x[3] = NAN;
  const Tensor device_x = harness.Put(x);
  const Tensor out = harness.Empty(n);
  const Tensor d_x = harness.Put(Values(n, 1.0));
  harness.operators().GeluForward(harness.stream(), device_x.data(), out.data());
  harness.operators().GeluBackward(harness.stream(), device_x.data(), d_x.data(), d_x.data());
  for (const Tensor* tensor : {&out, &d_x}) {
    const Values got = harness.Get(*tensor);
    for (uint64_t i = 0; i < n; ++i) EXPECT_EQ(std::isnan(got[i]), std::isnan(x[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LayerTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
