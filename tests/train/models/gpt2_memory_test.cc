// What a GPT-2 takes from the device is what was announced, to the byte.
#include <gtest/gtest.h>

#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

const Gpt2Config kOddSizes = {
    .vocab_size = 13, .n_positions = 9, .n_embd = 15, .n_layer = 2, .n_head = 3, .n_inner = 17};
const BatchShape kShape = {.micro_batch = 3, .micro_batches = 2, .sequence = 5};

class Gpt2MemoryTest : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr Bytes kStep = device::kDeviceAlignment;

  kernels::OperatorOptions options() const {
    return Gpt2Operators(kOddSizes, kShape, GetParam(), 1);
  }
  Bytes scratch() const { return kernels::OperatorScratch(device::Kind::kCpu, options()).value(); }
  Bytes activations() const { return Gpt2::Memory(kOddSizes, kShape, GetParam()).device; }
};

TEST_P(Gpt2MemoryTest, FitsADeviceOfExactlyWhatItAnnounces) {
  const auto device = device::CreateCpuDevice({.memory = scratch() + activations()}).value();
  const auto operators = kernels::CreateModelOperators(*device, options()).value();
  const Bytes before = device->used();
  const auto model = Gpt2::Create(kOddSizes, kShape, GetParam(), *device, *operators);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(device->used() - before, activations());
}

TEST_P(Gpt2MemoryTest, IsRefusedByASmallerDeviceAndGivesBackWhatItTook) {
  const auto device =
      device::CreateCpuDevice({.memory = scratch() + activations() - kStep}).value();
  const auto operators = kernels::CreateModelOperators(*device, options()).value();
  const Bytes before = device->used();
  const auto model = Gpt2::Create(kOddSizes, kShape, GetParam(), *device, *operators);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kBudget);
  EXPECT_EQ(device->used(), before);
}

TEST_P(Gpt2MemoryTest, RefusesASequenceBeyondTheModelsPositions) {
  BatchShape shape = kShape;
  shape.sequence = kOddSizes.n_positions + 1;
  const auto device = device::CreateCpuDevice({.memory = 16_MiB}).value();
  const auto operators = kernels::CreateModelOperators(*device, options()).value();
  const auto model = Gpt2::Create(kOddSizes, shape, GetParam(), *device, *operators);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(Gpt2MemoryTest, WithCheckpointsOnTheHostFitsADeviceOfExactlyWhatItAnnounces) {
  Gpt2Config config = kOddSizes;
  config.n_layer = 7;
  BatchShape shape = kShape;
  const Bytes whole = Gpt2::Memory(config, shape, GetParam()).device;
  shape.checkpoint_home = Tier::kHost;
  const ActivationBytes taken = Gpt2::Memory(config, shape, GetParam());
  // 7 layers and 2 micro-batches: 14 checkpoints at home, 4 on the device.
  EXPECT_LT(taken.device, whole);
  EXPECT_EQ(taken.host.value % 14, 0U);
  const auto device = device::CreateCpuDevice({.memory = scratch() + taken.device}).value();
  const auto operators = kernels::CreateModelOperators(*device, options()).value();
  const Bytes before = device->used();
  const auto model = Gpt2::Create(config, shape, GetParam(), *device, *operators);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(device->used() - before, taken.device);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Gpt2MemoryTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) {
                           return info.param == DType::kFloat32 ? "fp32" : "bf16";
                         });

TEST(Gpt2MemoryFormulaTest, IsFollowed) {
  // R = 15 rows, L = 2, M = 2, C = 15, H = 17 (so that d qkv, 3C, is the larger), S = 4:
  //   outputs, checkpoints, and 3 others  (2 + 2·2 + 3) · A(15·15·4 = 900) = 9 · 1024
  //   qkv, fc                             2 · A(15·45·4 = 2700)        = 2 · 2816
  //   gelu                                A(15·17·4 = 1020)            = 1024
  //   mean, rstd                          2 · A(60)                    = 512
  //   tokens                              A(8·30 = 240)                = 256
  //   largest magnitudes                  A(4·5 = 20)                  = 256
  const ActivationBytes taken = Gpt2::Memory(kOddSizes, kShape, DType::kFloat32);
  EXPECT_EQ(taken.device, Bytes{9 * 1024 + 2 * 2816 + 1024 + 512 + 256 + 256});
  EXPECT_EQ(taken.host, Bytes{});
}

TEST(Gpt2MemoryFormulaTest, SeveralMicroBatchesTakeTheTablesGradientMoreInScratch) {
  Gpt2Config config = kOddSizes;
  config.vocab_size = 50'257;
  BatchShape shape = {.micro_batch = 2, .micro_batches = 1, .sequence = 9};
  const auto scratch = [&](uint64_t micro_batch, uint64_t micro_batches) {
    shape.micro_batch = micro_batch;
    shape.micro_batches = micro_batches;
    return kernels::OperatorScratch(device::Kind::kCpu,
                                    Gpt2Operators(config, shape, DType::kFloat32, 1))
        .value();
  };
  const Bytes table = AlignUp(Bytes{50'257 * 15 * sizeof(float)}, device::kDeviceAlignment);
  for (const uint64_t micro_batches : {2, 7}) {
    EXPECT_EQ(scratch(20, micro_batches) - scratch(20, 1), table) << "180 rows, in two chunks";
    EXPECT_EQ(scratch(2, micro_batches), scratch(2, 1)) << "18 rows";
  }
}

}  // namespace
}  // namespace penstock::train
