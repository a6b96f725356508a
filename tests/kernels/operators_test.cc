// The operators as a whole: what they allocate, what they refuse, that a run can be repeated bit
// for bit at other addresses, and the operators that only spread other kernels over the threads.
#include "kernels/operators.h"

#include <cstring>
#include <dnnl.hpp>
#include <span>
#include <vector>

#include "kernels/block_sums.h"
#include "tests/kernels/operators_testing.h"

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
  const Bytes planned = CpuOperatorScratch(options(), mode().arithmetic).value();
  const auto enough = device::CreateCpuDevice({.memory = planned}).value();
  const auto made = CreateCpuOperators(*enough, options(), mode().arithmetic);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ((*made)->scratch_bytes(), planned);
  EXPECT_EQ(enough->used(), planned);

  const auto short_by_one = device::CreateCpuDevice({.memory = planned - 256_B}).value();
  const auto refused = CreateCpuOperators(*short_by_one, options(), mode().arithmetic);
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
    const Tensor source = harness.Put(dtype, RandomValues(dtype, n, seed));
    std::memcpy(at, source.data(), size.value);
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
  float* d_weight = floats(width * 3 * width, 8);
  float* d_bias = floats(3 * width, 9);
  float* d_table = floats(kShapes.vocabulary * width, 10);
  float* mean = floats(rows, 11);
  float* rstd = floats(rows, 12);
  const auto tokens = harness.PutIntegers(std::vector<int32_t>(rows, 17));
  const auto loss = harness.device().Allocate(8_B, "the loss").value();
  *loss.as<double>() = 0;

  op.LayerNormForward(stream, x, weight, bias, 1e-5f, out, mean, rstd);
  op.LinearForward(stream, out, weight, bias, nullptr, width, 3 * width, qkv);
  op.AttentionForward(stream, qkv, out);
  op.AttentionBackward(stream, qkv, out, d_qkv);
  op.LinearBackwardWeight(stream, out, d_qkv, width, 3 * width, d_weight, d_bias);
  op.LinearBackwardInput(stream, d_qkv, weight, width, 3 * width, out);
  op.LayerNormBackward(stream, x, weight, mean, rstd, out, true, d_x, d_weight, d_bias);
  op.HeadForwardBackward(stream, out, table, tokens.as<int32_t>(), 1, loss.as<double>(), out,
                         d_table);
  harness.Synchronize();

  std::vector<std::byte> results(8);
  std::memcpy(results.data(), loss.data(), 8);
  for (const auto& operand : operands) {
    results.insert(results.end(), operand.begin(), operand.end());
  }
  return results;
}

TEST_P(WholeTest, TheSameBitsComeOutAgainAndAtOtherAddresses) {
  const auto first = RunLayer(mode(), 0);
  EXPECT_EQ(first, RunLayer(mode(), 0));
  EXPECT_EQ(first, RunLayer(mode(), 4));
  EXPECT_EQ(first, RunLayer(mode(), 100));
}

INSTANTIATE_TEST_SUITE_P(Modes, WholeTest, ModesOnTargets(), ModeOnTargetName);

TEST(OperatorsFactoryTest, RefusesHeadsThatDoNotDivideTheWidthAndFp16) {
  const auto device = device::CreateCpuDevice({.memory = 64_MiB}).value();
  OperatorOptions options{.dtype = DType::kFloat32, .shapes = kShapes, .threads = 1};
  options.shapes.heads = 5;
  EXPECT_EQ(CreateOperators(*device, options).error().code, ErrorCode::kInvalidArgument);
  options.shapes.heads = 3;
  options.dtype = DType::kFloat16;
  EXPECT_EQ(CreateOperators(*device, options).error().code, ErrorCode::kUnavailable);
}

TEST(ArithmeticTest, NamesWhatTheBitsDependOnAndNothingElse) {
  const auto arithmetic = [](const Mode& mode, const OperatorShapes& shapes, int threads) {
    return OperatorsHarness(mode, shapes, threads).operators().arithmetic();
  };
  const std::string two = arithmetic(kModes[2], kShapes, 2);
  OperatorShapes other = kShapes;
  other.batch = 1;
  EXPECT_EQ(arithmetic(kModes[2], other, 2), two);
  EXPECT_NE(arithmetic(kModes[2], kShapes, 1), two);
  EXPECT_NE(arithmetic(kModes[0], kShapes, 2), two);
  EXPECT_EQ(two.find("cpu "), 0U) << two;
  for (const char* part : {"bf16 converted", "oneDNN", "2 threads"}) {
    EXPECT_NE(two.find(part), std::string::npos) << part << " in " << two;
  }
  for (const char* const target : AdamTargets()) {
    const ForcedTarget forced(target);
    EXPECT_NE(arithmetic(kModes[0], kShapes, 1).find(target), std::string::npos) << target;
  }
}

TEST(OperatorsFactoryTest, CudaIsUnavailable) {
  const auto planned =
      OperatorScratch(device::Kind::kCuda, {.dtype = DType::kFloat32, .shapes = kShapes});
  ASSERT_FALSE(planned.ok());
  EXPECT_EQ(planned.error().code, ErrorCode::kUnavailable);
}

TEST(RunKernelTest, OneDnnsLackOfMemoryIsTheStreamsLackOfMemory) {
  const auto status_after = [](dnnl_status_t status) {
    const auto device = device::CreateCpuDevice({.memory = 0_B}).value();
    const auto stream = device->CreateStream("compute");
    dynamic_cast<device::CpuStream&>(*stream).Launch(
        [=] { RunKernel(1, [=] { throw dnnl::error(status, "could not execute"); }); });
    return stream->Synchronize();
  };
  EXPECT_EQ(status_after(dnnl_out_of_memory).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(status_after(dnnl_runtime_error).error().code, ErrorCode::kUnavailable);
}

TEST(OperatorsSpreadTest, RoundGradientsRoundsToNearestEven) {
  OperatorsHarness harness(kModes[0], kShapes, 3);
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
  harness.Synchronize();
  EXPECT_EQ(harness.GetBytes(fp32), harness.GetBytes(in));
  for (uint64_t i = 0; i < n; ++i) {
    const float value = in.floats()[i];
    ASSERT_EQ(bf16.buffer.as<uint16_t>()[i], RoundToBFloat16(value).bits) << value;
    ASSERT_EQ(fp16.buffer.as<uint16_t>()[i], RoundToFloat16(value)) << value;
  }
}

TEST(OperatorsSpreadTest, BlockSumsEqualTheReference) {
  OperatorsHarness harness(kModes[0], kShapes, 3);
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
      harness.Synchronize();
      std::vector<double> want(blocks);
      EXPECT_EQ(BlockSumsReference(gradient.data(), dtype, n, want), finite);
      EXPECT_EQ(*flag.as<uint32_t>(), finite ? 1U : 0U);
      EXPECT_EQ(std::memcmp(sums.data(), want.data(), blocks * 8), 0);
    }
  }
}

TEST(OperatorsSpreadTest, AdamEqualsTheReferenceForBothKindsOfMaster) {
  OperatorsHarness harness(kModes[0], kShapes, 3);
  const uint64_t n = 4099;
  const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.01}, 1e-3, 3, 0.5);
  std::vector<float> moments(n, 0.25f);
  std::vector<float> squares(n, 0.5f);
  const Values weights = RandomValues(DType::kFloat32, n, 1);
  const Values gradients = RandomValues(DType::kFloat32, n, 2);
  std::vector<float> weight(weights.begin(), weights.end());
  std::vector<float> gradient(gradients.begin(), gradients.end());
  std::vector<BFloat16> hi(n);
  std::vector<int16_t> lo(n);
  for (uint64_t i = 0; i < n; ++i) {
    const SplitMaster split = Split(weight[i]);
    hi[i] = split.hi;
    lo[i] = split.lo;
  }
  for (const bool splits : {false, true}) {
    const auto tile = [&](auto& m, auto& v, auto& w, auto& h, auto& l) {
      AdamTile result{.exp_avg = m, .exp_avg_sq = v, .gradient = gradient.data()};
      if (splits) {
        result.weight_hi = h;
        result.weight_lo = l;
      } else {
        result.weight = w;
      }
      return result;
    };
    auto m = moments;
    auto v = squares;
    auto w = weight;
    auto h = hi;
    auto l = lo;
    AdamUpdateReference(scalars, tile(m, v, w, h, l));
    auto m2 = moments;
    auto v2 = squares;
    auto w2 = weight;
    auto h2 = hi;
    auto l2 = lo;
    harness.operators().Adam(harness.stream(), scalars, tile(m2, v2, w2, h2, l2));
    harness.Synchronize();
    EXPECT_EQ(m, m2);
    EXPECT_EQ(v, v2);
    EXPECT_EQ(w, w2);
    EXPECT_EQ(l, l2);
    EXPECT_EQ(std::memcmp(h.data(), h2.data(), n * sizeof(BFloat16)), 0);
    EXPECT_NE(m, moments);
  }
}

}  // namespace
}  // namespace penstock::kernels
