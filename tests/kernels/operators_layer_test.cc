// Embedding and layer norm against double-precision references; the references' gradients against
// differences of the references.
#include <limits>
#include <vector>

#include "tests/kernels/operators_layer_shapes.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr float kEps = 1e-5f;

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
  for (const LayerShapes& shapes : kLayerShapes) {
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
  for (const LayerShapes& shapes : kLayerShapes) {
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
  for (const LayerShapes& shapes : kLayerShapes) {
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

TEST_P(LayerTest, LayerNormFindsTheLargestMagnitude) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const LayerShapes& shapes : kLayerShapes) {
    OperatorsHarness harness(mode(), shapes);
    const Values weight = Random(shapes.width, 2);
    const uint64_t elements = Rows(shapes) * shapes.width;
    const auto largest = [&](uint64_t at, double value, double before) {
      Values x = Random(elements, 1);
      x[at] = value;
      const Tensor device_x = harness.Put(x);
      const Tensor device_weight = harness.Put(weight);
      const Tensor out = harness.Empty(x.size());
      const Tensor mean = harness.Empty(DType::kFloat32, Rows(shapes));
      const Tensor rstd = harness.Empty(DType::kFloat32, Rows(shapes));
      const Tensor found = harness.Put(DType::kFloat32, {before});
      harness.operators().LayerNormForward(harness.stream(), device_x.data(), device_weight.data(),
                                           device_weight.data(), kEps, out.data(), mean.floats(),
                                           rstd.floats(), found.floats());
      return harness.Get(found).at(0);
    };
    for (const uint64_t at : {uint64_t{0}, elements / 2, elements - 1}) {
      EXPECT_EQ(largest(at, -96, 0), 96);
      EXPECT_EQ(largest(at, 96, 95), 96);
      EXPECT_EQ(largest(at, 96, 1e6), 1e6) << "what was there is larger";
      EXPECT_EQ(largest(at, kNaN, 3), kInfinity);
      EXPECT_EQ(largest(at, -kInfinity, 3), kInfinity);
    }
  }
}

TEST_P(LayerTest, LayerNormBackwardAgreesAndAccumulates) {
  for (const LayerShapes& shapes : kLayerShapes) {
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

INSTANTIATE_TEST_SUITE_P(Modes, LayerTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
