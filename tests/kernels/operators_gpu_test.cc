// What only the CUDA operators have: several chunks of the head, long runs of equal tokens, sums in
// cuBLASLt's epilogue, the name of their arithmetic, heads that attention refuses.
#include <vector>

#include "tests/kernels/computed_first.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

using CudaOperatorsTest = OperatorsTest;

/// Two chunks: of 128 rows and of 22. The loss of equal logits is log(vocabulary) in every row.
TEST_P(CudaOperatorsTest, TheHeadGoesThroughAllItsChunks) {
  const LayerShapes shapes{
      .batch = 1, .sequence = 150, .width = 8, .heads = 1, .hidden = 8, .vocabulary = 400000};
  OperatorsHarness harness(mode(), shapes, 1, 1_GiB);
  const auto targets = harness.PutIntegers(std::vector<int32_t>(150, 399999));
  const Tensor x = harness.Put(Values(150 * 8, 1.0));
  const Tensor table = harness.Put(Values(400000 * 8, 0.0));
  const Tensor d_x = harness.Put(Values(150 * 8, 7.0));
  const Tensor d_table = harness.Zeros(DType::kFloat32, 400000 * 8);
  const auto loss = harness.PutDouble(0);
  harness.operators().HeadForwardBackward(harness.stream(), x.data(), table.data(),
                                          targets.as<int32_t>(), 1, loss.as<double>(), d_x.data(),
                                          d_table.floats());
  EXPECT_NEAR(harness.GetDouble(loss), 150 * std::log(400000.0), 1e-3);
  EXPECT_EQ(harness.Get(d_x), Values(150 * 8, 0.0));
  // Each row takes p - 1 from the target's row of the table.
  EXPECT_NEAR(harness.Get(d_table).back(), -150, 150 * Tolerance(mode().dtype));
}

/// Two chunks: of 128 rows and of one; the least of both, as an emulated GPU takes its time. One
/// token is left over by the products of whole columns.
TEST_P(CudaOperatorsTest, TheHeadAddsAllItsChunksOnce) {
  const uint64_t vocabulary = 262401;
  const LayerShapes shapes{
      .batch = 1, .sequence = 129, .width = 8, .heads = 1, .hidden = 8, .vocabulary = vocabulary};
  OperatorOptions options = LayerOptions(mode().dtype, shapes);
  options.adds_once = true;
  OperatorsHarness harness(mode(), shapes, options, 1_GiB);
  const auto targets = harness.PutIntegers(std::vector<int32_t>(129, 262400));
  const Tensor x = harness.Put(Random(129 * 8, 1));
  const Tensor table = harness.Put(Random(vocabulary * 8, 2));
  const Tensor d_x = harness.Empty(129 * 8);
  const auto loss = harness.PutDouble(0);
  ExpectComputedFirst(
      harness, {vocabulary * 8},
      [&](const std::vector<float*>& gradients) {
        harness.operators().HeadForwardBackward(harness.stream(), x.data(), table.data(),
                                                targets.as<int32_t>(), 1, loss.as<double>(),
                                                d_x.data(), gradients[0]);
      },
      "head");
}

/// cuBLASLt does not say that it adds what lies in c (beta = 1) to the finished sum. Where this
/// fails, a weight's gradient has to be computed apart, as the head's is. Deep products of few
/// elements, whose sums it splits, and some that fill its tiles or do not.
TEST_P(CudaOperatorsTest, AProductIsComputedBeforeItIsAddedToAGradient) {
  struct Map {
    uint64_t rows, k, n;
  };
  for (const auto& [rows, k, n] : {Map{4096, 64, 64}, Map{8192, 40, 24}, Map{1000, 256, 96},
                                   Map{777, 45, 135}, Map{256, 768, 768}}) {
    const LayerShapes shapes{.batch = 1, .sequence = rows};
    const LinearCall call{mode().dtype, rows, k, n};
    OperatorsHarness harness(mode(), shapes, {.calls = {call}, .weight_unit = std::gcd(k, n)});
    const Tensor x = harness.Put(Random(rows * k, 1));
    const Tensor d_out = harness.Put(Random(rows * n, 2));
    ExpectComputedFirst(
        harness, {k * n, n},
        [&, k = k, n = n](const std::vector<float*>& gradients) {
          harness.operators().LinearBackwardWeight(harness.stream(), x.data(), d_out.data(), k, n,
                                                   gradients[0], gradients[1]);
        },
        std::to_string(rows) + " rows, " + std::to_string(k) + " x " + std::to_string(n));
  }
}

TEST_P(CudaOperatorsTest, RowsOfOneTokenAreAddedInTheirOrder) {
  const LayerShapes shapes{
      .batch = 3, .sequence = 700, .width = 300, .heads = 5, .hidden = 8, .vocabulary = 5};
  OperatorsHarness harness(mode(), shapes);
  std::vector<int32_t> tokens(2100, 3);
  tokens[40] = 1;
  tokens[1999] = 1;
  const Values d_out = Random(2100 * 300, 1);
  const auto device_tokens = harness.PutIntegers(tokens);
  const Tensor device_d_out = harness.Put(d_out);
  const Tensor d_table = harness.Zeros(DType::kFloat32, 5 * 300);
  const Tensor d_positions = harness.Zeros(DType::kFloat32, 700 * 300);
  harness.operators().EmbeddingBackward(harness.stream(), device_tokens.as<int32_t>(),
                                        device_d_out.data(), d_table.floats(),
                                        d_positions.floats());
  std::vector<float> want(5 * 300);
  for (uint64_t row = 0; row < 2100; ++row) {
    for (uint64_t c = 0; c < 300; ++c) {
      want[static_cast<uint64_t>(tokens[row]) * 300 + c] +=
          static_cast<float>(d_out[row * 300 + c]);
    }
  }
  EXPECT_EQ(harness.GetElements<float>(d_table.data(), want.size()), want);
}

TEST_P(CudaOperatorsTest, ArithmeticNamesTheGpuAndTheLibrary) {
  OperatorsHarness harness(mode(), {1, 8, 8, 1, 8, 8});
  const std::string arithmetic = harness.operators().arithmetic();
  EXPECT_EQ(arithmetic.find("cuda "), 0U) << arithmetic;
  for (const char* part : {"multiprocessors", "cuBLASLt", ToString(mode().dtype)}) {
    EXPECT_NE(arithmetic.find(part), std::string::npos) << part << " in " << arithmetic;
  }
}

/// Else a layer has four more passes over its widest tensors than it needs.
TEST_P(CudaOperatorsTest, GeluIsPartOfTheProductsIn16BitsWhereRowsAreAligned) {
  const auto fused = [&](uint64_t hidden) {
    const std::string arithmetic =
        OperatorsHarness(mode(), {1, 512, 768, 12, hidden, 8}).operators().arithmetic();
    return arithmetic.substr(arithmetic.find(" with ") + 6);
  };
  const bool fuses = mode().dtype != DType::kFloat32;
  const char* const want = fuses ? "GELU and its gradient in products" : "nothing in products";
  for (const uint64_t hidden : {3072, 3 * 768, 768}) EXPECT_EQ(fused(hidden), want) << hidden;
  EXPECT_EQ(fused(3076), "nothing in products");
}

TEST_P(CudaOperatorsTest, HeadsThatAttentionCannotTakeAreRefused) {
  const auto device = CreateTestedDevice(256_MiB).value();
  const OperatorOptions options = LayerOptions(mode().dtype, {1, 8, 264, 1, 8, 8});
  const auto made = CreateTestedOperators(*device, mode(), options);
  EXPECT_EQ(made.ok(), mode().dtype == DType::kFloat32);
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaOperatorsTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
