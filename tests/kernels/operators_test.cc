// The operators as a whole: what they allocate, what they refuse, that a run can be repeated bit
// for bit at other addresses, and the operators of gradients and updates.
#include "kernels/operators.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/block_sums.h"
#include "tests/kernels/operators_testing.h"
#include "tests/kernels/optimizer_steps.h"
#include "tests/kernels/optimizer_tile_data.h"

namespace penstock::kernels {
namespace {

constexpr OperatorShapes kShapes{
    .batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 192, .vocabulary = 257};

class WholeTest : public OperatorsTest {
 protected:
  OperatorOptions options() const {
    return {.dtype = mode().dtype, .shapes = kShapes, .threads = 2};
  }
};

TEST_P(WholeTest, ScratchIsExactlyWhatIsAllocated) {
  const Bytes planned = TestedScratch(mode(), options()).value();
  const auto enough = CreateTestedDevice(planned).value();
  const auto made = CreateTestedOperators(*enough, mode(), options());
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ((*made)->scratch_bytes(), planned);
  EXPECT_EQ(enough->used(), planned);

  const auto short_by_one = CreateTestedDevice(planned - 256_B).value();
  const auto refused = CreateTestedOperators(*short_by_one, mode(), options());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBudget);
}

/// Runs a layer's worth of operators on operands that lie `offset` bytes behind an aligned address;
/// returns all results.
std::vector<std::byte> RunLayer(const Mode& mode, uint64_t offset) {
  OperatorsHarness harness(mode, kShapes);
  Operators& op = harness.operators();
  device::Stream& stream = harness.stream();
  const uint64_t rows = kShapes.batch * kShapes.sequence;
  const uint64_t width = kShapes.width;
  std::vector<device::DeviceBuffer> buffers;
  std::vector<std::span<const std::byte>> operands;
  const auto make = [&](DType dtype, uint64_t n, uint64_t seed) {
    const Bytes size = n * SizeOf(dtype);
    buffers.push_back(harness.device().Allocate(size + Bytes{offset}, "an operand").value());
    std::byte* at = buffers.back().data() + offset;
    const auto source = harness.GetBytes(harness.Put(dtype, RandomValues(dtype, n, seed)));
    stream.CopyToDevice(at, source.data(), size);
    harness.Synchronize();
    operands.emplace_back(at, size.value);
    return at;
  };
  const auto floats = [&](uint64_t n, uint64_t seed) {
    return reinterpret_cast<float*>(make(DType::kFloat32, n, seed));
  };
  std::byte* x = make(mode.dtype, rows * width, 1);
  std::byte* weight = make(mode.dtype, width * 3 * width, 2);
  std::byte* bias = make(mode.dtype, 3 * width, 3);
  std::byte* qkv = make(mode.dtype, rows * 3 * width, 4);
  std::byte* out = make(mode.dtype, rows * width, 5);
  std::byte* d_qkv = make(mode.dtype, rows * 3 * width, 6);
  std::byte* table = make(mode.dtype, kShapes.vocabulary * width, 7);
  std::byte* d_x = make(mode.dtype, rows * width, 13);
  std::byte* wide = make(mode.dtype, width * kShapes.hidden, 14);
  std::byte* pre = make(mode.dtype, rows * kShapes.hidden, 15);
  std::byte* activated = make(mode.dtype, rows * kShapes.hidden, 16);
  std::byte* d_pre = make(mode.dtype, rows * kShapes.hidden, 17);
  float* d_weight = floats(width * 3 * width, 8);
  float* d_bias = floats(3 * width, 9);
  float* d_table = floats(kShapes.vocabulary * width, 10);
  float* mean = floats(rows, 11);
  float* rstd = floats(rows, 12);
  const auto tokens = harness.PutIntegers(std::vector<int32_t>(rows, 17));
  const auto loss = harness.PutDouble(0);
  operands.emplace_back(loss.data(), loss.size().value);

  op.LayerNormForward(stream, x, weight, bias, 1e-5f, out, mean, rstd);
  op.LinearForward(stream, out, weight, bias, nullptr, width, 3 * width, qkv);
  op.AttentionForward(stream, qkv, out);
  op.AttentionBackward(stream, qkv, out, d_qkv);
  op.LinearBackwardWeight(stream, out, d_qkv, width, 3 * width, d_weight, d_bias);
  op.LinearBackwardInput(stream, d_qkv, weight, width, 3 * width, out);
  op.LayerNormBackward(stream, x, weight, mean, rstd, out, true, d_x, d_weight, d_bias);
  op.LinearGeluForward(stream, x, wide, wide, pre, activated);
  op.LinearGeluBackwardInput(stream, x, wide, pre, d_pre);
  op.HeadForwardBackward(stream, out, table, tokens.as<int32_t>(), 1, loss.as<double>(), out,
                         d_table);
  std::vector<std::byte> results;
  for (const auto& operand : operands) {
    const auto bytes = harness.GetElements<std::byte>(operand.data(), operand.size());
    results.insert(results.end(), bytes.begin(), bytes.end());
  }
  return results;
}

TEST_P(WholeTest, TheSameBitsComeOutAgainAndAtOtherAddresses) {
  const auto first = RunLayer(mode(), 0);
  EXPECT_EQ(first, RunLayer(mode(), 0));
  for (const uint64_t offset : OtherOffsets()) EXPECT_EQ(first, RunLayer(mode(), offset)) << offset;
}

TEST_P(WholeTest, HeadsThatDoNotDivideTheWidthAndFp16AreRefused) {
  const auto device = CreateTestedDevice(64_MiB).value();
  OperatorOptions refused = options();
  refused.shapes.heads = 5;
  EXPECT_EQ(CreateTestedOperators(*device, mode(), refused).error().code,
            ErrorCode::kInvalidArgument);
  refused.shapes.heads = 3;
  refused.dtype = DType::kFloat16;
  EXPECT_EQ(CreateTestedOperators(*device, mode(), refused).error().code, ErrorCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Modes, WholeTest, AllModes(), ModeName);

using GradientsTest = OneModeTest;

TEST_F(GradientsTest, RoundGradientsRoundsToNearestEven) {
  OperatorsHarness harness(mode_, kShapes, 3);
  const uint64_t n = 5001;
  Values values = RandomValues(DType::kFloat32, n, 1);
  values[0] = 1 + 1.0 / 256;  // half way: to even, 1
  values[1] = 1 + 3.0 / 256;  // half way: to even, 1 + 2 / 128
  values[2] = INFINITY;
  values[n - 1] = NAN;
  const Tensor in = harness.Put(DType::kFloat32, values);
  const Tensor bf16 = harness.Empty(DType::kBFloat16, n);
  const Tensor fp32 = harness.Empty(DType::kFloat32, n);
  const Tensor fp16 = harness.Empty(DType::kFloat16, n);
  Operators& op = harness.operators();
  op.RoundGradients(harness.stream(), in.floats(), DType::kBFloat16, n, bf16.data());
  op.RoundGradients(harness.stream(), in.floats(), DType::kFloat32, n, fp32.data());
  op.RoundGradients(harness.stream(), in.floats(), DType::kFloat16, n, fp16.data());
  EXPECT_EQ(harness.GetBytes(fp32), harness.GetBytes(in));
  const auto exact = harness.GetElements<float>(in.data(), n);
  const auto as_bf16 = harness.GetElements<uint16_t>(bf16.data(), n);
  const auto as_fp16 = harness.GetElements<uint16_t>(fp16.data(), n);
  for (uint64_t i = 0; i < n; ++i) {
    ASSERT_EQ(as_bf16[i], RoundToBFloat16(exact[i]).bits) << exact[i];
    ASSERT_EQ(as_fp16[i], RoundToFloat16(exact[i])) << exact[i];
  }
}

TEST_F(GradientsTest, BlockSumsEqualTheReference) {
  OperatorsHarness harness(mode_, kShapes, 3);
  const uint64_t blocks = 5;
  const uint64_t n = blocks * kBlockElements;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool finite : {true, false}) {
      Values values = RandomValues(dtype, n, 1);
      if (!finite) values[n - 3] = INFINITY;
      const Tensor gradient = harness.Put(dtype, values);
      const auto sums = harness.device().Allocate(Bytes{blocks * 8}, "sums").value();
      const auto flag = harness.device().Allocate(4_B, "flag").value();
      harness.operators().BlockSums(harness.stream(), gradient.data(), dtype, n, sums.as<double>(),
                                    flag.as<uint32_t>());
      const auto bytes = harness.GetBytes(gradient);
      std::vector<double> want(blocks);
      EXPECT_EQ(BlockSumsReference(bytes.data(), dtype, n, want), finite);
      EXPECT_EQ(harness.GetElements<uint32_t>(flag.data(), 1).front(), finite ? 1U : 0U);
      const auto got = harness.GetElements<double>(sums.data(), blocks);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), blocks * 8), 0);
    }
  }
}

/// Calls `f` with each plane of `a`, but for copies and the gradient, and the same one of `b`.
template <typename F>
void ForEachPlane(OptimizerTile& a, OptimizerTile& b, F f) {
  f(a.weight_hi, b.weight_hi);
  f(a.weight_lo, b.weight_lo);
  f(a.weight, b.weight);
  f(a.exp_avg, b.exp_avg);
  f(a.exp_avg_sq, b.exp_avg_sq);
  f(a.exp_avg_bf16, b.exp_avg_bf16);
  f(a.exp_avg_sq_bf16, b.exp_avg_sq_bf16);
}

TileData RandomTile(const TileFormat& format, uint64_t n) {
  TileData data(format, n);
  const Values weights = RandomValues(DType::kFloat32, n, 1);
  const Values gradients = RandomValues(DType::kFloat32, n, 2);
  for (uint64_t i = 0; i < n; ++i) {
    data.Set(i, static_cast<float>(weights[i]), 0.25F, 0.5F, static_cast<float>(gradients[i]));
  }
  return data;
}

class UpdateTest : public GradientsTest {
 protected:
  /// One step on the device, on a tile that goes there and comes back.
  static void Update(OperatorsHarness& harness, const OptimizerScalars& scalars, TileData& data) {
    OptimizerTile host = data.tile();
    OptimizerTile on_device = host;
    std::vector<device::DeviceBuffer> buffers;
    ForEachPlane(host, on_device, [&]<typename T>(std::span<T>& from, std::span<T>& to) {
      if (from.empty()) return;
      buffers.push_back(harness.PutElements<T>(from));
      to = {buffers.back().template as<T>(), from.size()};
    });
    const Bytes gradient = SizeOf(host.gradient_dtype) * data.count();
    buffers.push_back(harness.PutElements<std::byte>(
        {static_cast<const std::byte*>(host.gradient), gradient.value}));
    on_device.gradient = buffers.back().data();
    harness.operators().Update(harness.stream(), scalars, on_device);
    ForEachPlane(host, on_device, [&]<typename T>(std::span<T>& to, std::span<T>& from) {
      if (!to.empty())
        std::ranges::copy(harness.GetElements<T>(from.data(), from.size()), to.begin());
    });
  }
};

TEST_F(UpdateTest, EveryRuleEqualsItsReferenceForEveryKindOfMasterAndMoments) {
  OperatorsHarness harness(mode_, kShapes, 3);
  const uint64_t n = 4099;
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      // The engine's tiles have neither.
      if (format.copy || format.gradient == DType::kFloat16) continue;
      const TileData before = RandomTile(format, n);
      TileData expected = before;
      step.reference(expected.tile());
      TileData got = before;
      Update(harness, step.scalars, got);
      EXPECT_EQ(got.DifferencesFrom(expected), 0)
          << step.name << ", " << ::testing::PrintToString(format);
      EXPECT_GT(expected.DifferencesFrom(before), static_cast<int>(n));
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
