#include "zero/device_gradients.h"

#include <gmock/gmock.h>

#include "tests/zero/toy_model.h"
#include "zero/partitioner.h"

namespace penstock::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModuleId kIn{0};
constexpr ModuleId kLayer0{1};
constexpr ModuleId kLayer1{2};

class DeviceGradientsTest : public ::testing::Test {
 protected:
  const ModelSpec model_ = ToySpec(2, 5000);
  const offload::ShardLayout layout_ = MakeLayout(model_, DType::kBFloat16, 8192);
  const std::unique_ptr<device::Device> device_ =
      device::CreateCpuDevice({.memory = 1_MiB}).value();
  const std::unique_ptr<device::Stream> compute_ = device_->CreateStream("compute").value();
  DeviceGradients gradients_ = DeviceGradients::Create(model_, layout_, *device_).value();

  /// What the first element of the module's sums is, after it was asked for them; then it is 1.
  float FirstOf(ModuleId module) {
    const auto sums = gradients_.Sums(module, *compute_);
    EXPECT_TRUE(sums.ok()) << sums.error().message;
    EXPECT_TRUE(compute_->Synchronize().ok());
    return std::exchange(**sums, 1.0F);
  }
};

TEST_F(DeviceGradientsTest, SumsAreZeroAtTheirFirstUseInAStepAndStayWithinIt) {
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(FirstOf(kIn), 0);
    EXPECT_EQ(FirstOf(kIn), 1);
    const auto finished = gradients_.Finish(kIn);
    ASSERT_TRUE(finished.ok());
    EXPECT_EQ(**finished, 1) << "they are there until others take their place";
  }
}

TEST_F(DeviceGradientsTest, LayersShareABufferAndTheSecondIsRefusedUntilTheFirstIsReduced) {
  FirstOf(kLayer0);
  const auto refused = gradients_.Sums(kLayer1, *compute_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("layer.0"), HasSubstr("layer.1")));
  const float* const shared = *gradients_.Finish(kLayer0);
  EXPECT_EQ(FirstOf(kLayer1), 0) << "it does not begin with the sums of the other";
  EXPECT_EQ(*gradients_.Finish(kLayer1), shared);
}

TEST_F(DeviceGradientsTest, ModulesThatAreNotRepeatedHaveSumsBesideEachOther) {
  FirstOf(kIn);
  FirstOf(kLayer0);
  EXPECT_EQ(FirstOf(ModuleId{3}), 0);
  EXPECT_NE(*gradients_.Finish(kIn), *gradients_.Finish(kLayer0));
  EXPECT_TRUE(gradients_.Finish(ModuleId{3}).ok());
}

TEST_F(DeviceGradientsTest, SumsThatNobodyAskedForAreNotReduced) {
  for (int times = 0; times < 2; ++times) {
    const auto refused = gradients_.Finish(kIn);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("module in "));
    FirstOf(kIn);
    EXPECT_TRUE(gradients_.Finish(kIn).ok());
  }
}

TEST_F(DeviceGradientsTest, AStepThatEndsEarlyLeavesNothingToTheNext) {
  FirstOf(kLayer0);
  gradients_.EndStep();
  EXPECT_FALSE(gradients_.Finish(kLayer0).ok());
  EXPECT_EQ(FirstOf(kLayer1), 0) << "the buffer is free, and zeroed again";
}

TEST_F(DeviceGradientsTest, ItTakesAsMuchAsIsPlannedAndFailsWhereThatIsNotThere) {
  const Bytes need = device_->used();
  const auto smaller = device::CreateCpuDevice({.memory = need - device::kDeviceAlignment}).value();
  const auto refused = DeviceGradients::Create(model_, layout_, *smaller);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().error().code, ErrorCode::kBudget);
}

}  // namespace
}  // namespace penstock::zero
