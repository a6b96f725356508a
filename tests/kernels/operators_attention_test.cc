// Causal attention against a double-precision reference, its gradient against differences, and what
// must hold bitwise: causality, and independence of the number of threads.
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

/// One token; odd lengths below a block; more than one block; the block of long sequences; heads of
/// 80 and of 128 elements.
const LayerShapes kShapes[] = {
    {.batch = 2, .sequence = 1, .width = 48, .heads = 3, .hidden = 48, .vocabulary = 257},
    {.batch = 2, .sequence = 7, .width = 48, .heads = 1, .hidden = 48, .vocabulary = 257},
    {.batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 48, .vocabulary = 257},
    {.batch = 1, .sequence = 133, .width = 45, .heads = 3, .hidden = 48, .vocabulary = 257},
    {.batch = 1, .sequence = 1030, .width = 8, .heads = 1, .hidden = 8, .vocabulary = 8},
    {.batch = 2, .sequence = 67, .width = 160, .heads = 2, .hidden = 8, .vocabulary = 8},
    {.batch = 1, .sequence = 130, .width = 128, .heads = 1, .hidden = 8, .vocabulary = 8},
};

/// The results, and the sums of the absolute values of their terms: bf16 rounds probabilities and
/// their gradients before the second products, so that each term has an error of 2^-8 of its own.
struct Reference {
  Values out;
  Values d_qkv;
  Values out_magnitude;
  Values d_qkv_magnitude;
};

void AddTerm(Values& sums, Values& magnitudes, uint64_t at, double term) {
  sums[at] += term;
  magnitudes[at] += std::abs(term);
}

/// One head at a time: out, and where d_out is not empty the gradient at qkv.
Reference ReferenceAttention(const LayerShapes& shapes, const Values& qkv, const Values& d_out) {
  const uint64_t d = shapes.width / shapes.heads;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const uint64_t gradients = d_out.empty() ? 0 : qkv.size();
  Reference result{Values(qkv.size() / 3), Values(gradients), Values(qkv.size() / 3),
                   Values(gradients)};
  const auto add_out = [&](uint64_t at, double term) {
    AddTerm(result.out, result.out_magnitude, at, term);
  };
  const auto add_d_qkv = [&](uint64_t at, double term) {
    AddTerm(result.d_qkv, result.d_qkv_magnitude, at, term);
  };
  Values p(shapes.sequence);
  Values d_p(shapes.sequence);
  for (uint64_t task = 0; task < shapes.batch * shapes.heads; ++task) {
    const uint64_t first_row = task / shapes.heads * shapes.sequence;
    const uint64_t column = task % shapes.heads * d;
    const auto in = [&](uint64_t row, uint64_t part) {
      return ((first_row + row) * 3 + part) * shapes.width + column;
    };
    const auto out_at = [&](uint64_t row) { return (first_row + row) * shapes.width + column; };
    for (uint64_t i = 0; i < shapes.sequence; ++i) {
      double highest = -INFINITY;
      for (uint64_t j = 0; j <= i; ++j) {
        p[j] = 0;
        for (uint64_t c = 0; c < d; ++c) p[j] += qkv[in(i, 0) + c] * qkv[in(j, 1) + c] * scale;
        highest = std::max(highest, p[j]);
      }
      double sum = 0;
      for (uint64_t j = 0; j <= i; ++j) sum += p[j] = std::exp(p[j] - highest);
      for (uint64_t j = 0; j <= i; ++j) {
        p[j] /= sum;
        for (uint64_t c = 0; c < d; ++c) add_out(out_at(i) + c, p[j] * qkv[in(j, 2) + c]);
      }
      if (d_out.empty()) continue;
      double mean = 0;
      for (uint64_t j = 0; j <= i; ++j) {
        d_p[j] = 0;
        for (uint64_t c = 0; c < d; ++c) d_p[j] += d_out[out_at(i) + c] * qkv[in(j, 2) + c];
        mean += p[j] * d_p[j];
      }
      for (uint64_t j = 0; j <= i; ++j) {
        const double d_score = p[j] * (d_p[j] - mean) * scale;
        for (uint64_t c = 0; c < d; ++c) {
          add_d_qkv(in(i, 0) + c, d_score * qkv[in(j, 1) + c]);
          add_d_qkv(in(j, 1) + c, d_score * qkv[in(i, 0) + c]);
          add_d_qkv(in(j, 2) + c, p[j] * d_out[out_at(i) + c]);
        }
      }
    }
  }
  return result;
}

/// One rounding of the result; where 16-bit elements are multiplied as such also one of each term.
/// The tenth is for what fp32 adds.
double AttentionTolerance(const Mode& mode) {
  return (mode.rounds_terms ? 2.1 : 1.1) * Tolerance(mode.dtype);
}

uint64_t OutSize(const LayerShapes& shapes) {
  return shapes.batch * shapes.sequence * shapes.width;
}

using AttentionTest = OperatorsTest;

TEST_P(AttentionTest, ForwardAndBackwardAgree) {
  for (const LayerShapes& shapes : kShapes) {
    OperatorsHarness harness(mode(), shapes);
    const std::string name = std::to_string(shapes.sequence) + " tokens";
    const Values qkv = Random(3 * OutSize(shapes), 1);
    const Values d_out = Random(OutSize(shapes), 2);
    const Tensor device_qkv = harness.Put(qkv);
    const Tensor device_d_out = harness.Put(d_out);
    const Tensor out = harness.Empty(OutSize(shapes));
    const Tensor d_qkv = harness.Empty(3 * OutSize(shapes));
    harness.operators().AttentionForward(harness.stream(), device_qkv.data(), out.data());
    harness.operators().AttentionBackward(harness.stream(), device_qkv.data(), out.data(),
                                          device_d_out.data(), d_qkv.data());
    const Reference want = ReferenceAttention(shapes, qkv, d_out);
    const double spacing = HalfSpacing(mode().dtype);
    ExpectWithin(harness.Get(out), want.out, want.out_magnitude, AttentionTolerance(mode()),
                 spacing, name + " out");
    ExpectWithin(harness.Get(d_qkv), want.d_qkv, want.d_qkv_magnitude, AttentionTolerance(mode()),
                 spacing, name + " d_qkv");
    EXPECT_EQ(harness.Get(device_qkv), qkv);
    EXPECT_EQ(harness.Get(device_d_out), d_out);
  }
}

TEST(AttentionReferenceTest, GradientsAreDerivatives) {
  const LayerShapes shapes{.batch = 2, .sequence = 5, .width = 6, .heads = 2};
  const Values qkv = RandomValues(DType::kFloat32, 3 * OutSize(shapes), 1);
  const Values d_out = RandomValues(DType::kFloat32, OutSize(shapes), 2);
  ExpectGradientOf(
      [&](const Values& v) { return Dot(ReferenceAttention(shapes, v, {}).out, d_out); }, qkv,
      ReferenceAttention(shapes, qkv, d_out).d_qkv, "d_qkv");
}

TEST_P(AttentionTest, AFutureTokenChangesNoEarlierOutput) {
  const LayerShapes shapes = kShapes[3];
  OperatorsHarness harness(mode(), shapes);
  for (const uint64_t changed : {uint64_t{1}, uint64_t{63}, uint64_t{64}, shapes.sequence - 1}) {
    Values qkv = Random(3 * OutSize(shapes), 1);
    const Tensor before = harness.Empty(OutSize(shapes));
    const Tensor after = harness.Empty(OutSize(shapes));
    const Tensor device_qkv = harness.Put(qkv);
    harness.operators().AttentionForward(harness.stream(), device_qkv.data(), before.data());
    for (uint64_t i = changed * 3 * shapes.width; i < (changed + 1) * 3 * shapes.width; ++i) {
      qkv[i] = 5 - qkv[i];
    }
    const Values first = harness.Get(before);
    harness.Set(device_qkv, qkv);
    harness.operators().AttentionForward(harness.stream(), device_qkv.data(), after.data());
    const Values second = harness.Get(after);
    const auto border = static_cast<std::ptrdiff_t>(changed * shapes.width);
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + border, second.begin())) << changed;
    EXPECT_FALSE(std::equal(first.begin() + border, first.end(), second.begin() + border));
  }
}

TEST_P(AttentionTest, TheNumberOfThreadsChangesNoBit) {
  const LayerShapes shapes = kShapes[2];
  const Values qkv = Random(3 * OutSize(shapes), 1);
  const Values d_out = Random(OutSize(shapes), 2);
  std::vector<std::vector<std::byte>> results;
  for (const int threads : {1, 2, 5}) {
    OperatorsHarness harness(mode(), shapes, threads);
    const Tensor device_qkv = harness.Put(qkv);
    const Tensor device_d_out = harness.Put(d_out);
    const Tensor out = harness.Empty(OutSize(shapes));
    const Tensor d_qkv = harness.Empty(3 * OutSize(shapes));
    harness.operators().AttentionForward(harness.stream(), device_qkv.data(), out.data());
    harness.operators().AttentionBackward(harness.stream(), device_qkv.data(), out.data(),
                                          device_d_out.data(), d_qkv.data());
    results.push_back(harness.GetBytes(d_qkv));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

/// Which rows of the output are NaN when the key (1) or the value (2) of token `row` has a NaN.
std::vector<bool> NaNRows(const Mode& mode, uint64_t part, uint64_t row) {
  const LayerShapes shapes{
      .batch = 1, .sequence = 80, .width = 16, .heads = 1, .hidden = 16, .vocabulary = 8};
  OperatorsHarness harness(mode, shapes);
  Values qkv = RandomValues(mode.dtype, 3 * OutSize(shapes), 1);
  qkv[(row * 3 + part) * shapes.width] = NAN;
  const Tensor device_qkv = harness.Put(qkv);
  const Tensor out = harness.Empty(OutSize(shapes));
  harness.operators().AttentionForward(harness.stream(), device_qkv.data(), out.data());
  const Values got = harness.Get(out);
  std::vector<bool> rows;
  for (uint64_t r = 0; r < shapes.sequence; ++r) rows.push_back(std::isnan(got[r * shapes.width]));
  return rows;
}

TEST_P(AttentionTest, ANaNInAKeyReachesTheRowsThatSeeItAndNoOthers) {
  const std::vector<bool> nan = NaNRows(mode(), 1, 70);
  for (uint64_t row = 0; row < nan.size(); ++row) EXPECT_EQ(nan[row], row >= 70) << row;
}

TEST_P(AttentionTest, ANaNInAValueReachesTheRowsThatSeeItAndNoneBeforeItsBlock) {
  const std::vector<bool> nan = NaNRows(mode(), 2, 70);
  for (uint64_t row = 0; row < nan.size(); ++row) {
    if (row >= 70 / mode().queries_at_once * mode().queries_at_once && row < 70) continue;
    EXPECT_EQ(nan[row], row >= 70) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AttentionTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
