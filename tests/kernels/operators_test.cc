// The operators as a whole: what they allocate, what they refuse, and that a run can be repeated
// bit for bit at other addresses.
#include "kernels/model/model_operators.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr LayerShapes kShapes{
    .batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 192, .vocabulary = 257};

class WholeTest : public OperatorsTest {
 protected:
  OperatorOptions options() const { return LayerOptions(mode().dtype, kShapes, 2); }
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
  LayerOperators op = harness.operators();
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
  op.AttentionBackward(stream, qkv, out, out, d_qkv);
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

TEST_P(WholeTest, HeadsThatDoNotDivideTheWidthAreRefused) {
  const auto device = CreateTestedDevice(64_MiB).value();
  LayerShapes shapes = kShapes;
  shapes.heads = 5;
  const OperatorOptions refused = LayerOptions(mode().dtype, shapes, 2);
  EXPECT_EQ(CreateTestedOperators(*device, mode(), refused).error().code,
            ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Modes, WholeTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
