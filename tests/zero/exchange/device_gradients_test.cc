#include "zero/exchange/device_gradients.h"

#include <gmock/gmock.h>

#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"

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
  const std::unique_ptr<kernels::StateOperators> operators_ =
      kernels::CreateStateOperators(device::Kind::kCpu, 1).value();
  const std::unique_ptr<DeviceGradients> owned_ =
      DeviceGradients::Create(model_, layout_, *device_, *operators_).value();
  DeviceGradients& gradients_ = *owned_;

  /// What the first element of the module's sums is, after it was asked for them; then it is 1.
  float FirstOf(ModuleId module) {
    const auto sums = gradients_.Buffer(module, *compute_);
    EXPECT_TRUE(sums.ok()) << sums.error().message;
    EXPECT_TRUE(compute_->Synchronize().ok());
    return std::exchange(**sums, 1.0F);
  }
};

TEST_F(DeviceGradientsTest, SumsAreZeroAtTheirFirstUseInAStepAndStayWithinIt) {
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(FirstOf(kIn), 0);
    EXPECT_EQ(FirstOf(kIn), 1);
    EXPECT_TRUE(gradients_.Add(kIn, *compute_).ok());
    const auto finished = gradients_.Finish(kIn, *compute_);
    ASSERT_TRUE(finished.ok());
    EXPECT_EQ(finished->stream, compute_.get());
    EXPECT_EQ(*finished->sums, 1) << "they are there until others take their place";
  }
}

TEST_F(DeviceGradientsTest, LayersShareABufferAndTheSecondIsRefusedUntilTheFirstIsReduced) {
  FirstOf(kLayer0);
  const auto refused = gradients_.Buffer(kLayer1, *compute_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("layer.0"), HasSubstr("layer.1")));
  const float* const shared = gradients_.Finish(kLayer0, *compute_)->sums;
  EXPECT_EQ(FirstOf(kLayer1), 0) << "it does not begin with the sums of the other";
  EXPECT_EQ(gradients_.Finish(kLayer1, *compute_)->sums, shared);
}

TEST_F(DeviceGradientsTest, ModulesThatAreNotRepeatedHaveSumsBesideEachOther) {
  FirstOf(kIn);
  FirstOf(kLayer0);
  EXPECT_EQ(FirstOf(ModuleId{3}), 0);
  EXPECT_NE(gradients_.Finish(kIn, *compute_)->sums, gradients_.Finish(kLayer0, *compute_)->sums);
  EXPECT_TRUE(gradients_.Finish(ModuleId{3}, *compute_).ok());
}

TEST_F(DeviceGradientsTest, SumsThatWereNotRequestedAreNotReduced) {
  for (int times = 0; times < 2; ++times) {
    const auto refused = gradients_.Finish(kIn, *compute_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("module in "));
    FirstOf(kIn);
    EXPECT_TRUE(gradients_.Finish(kIn, *compute_).ok());
  }
}

TEST_F(DeviceGradientsTest, AStepThatEndsEarlyLeavesNothingToTheNext) {
  FirstOf(kLayer0);
  gradients_.EndStep();
  EXPECT_FALSE(gradients_.Finish(kLayer0, *compute_).ok());
  EXPECT_EQ(FirstOf(kLayer1), 0) << "the buffer is free, and zeroed again";
}

TEST_F(DeviceGradientsTest, ItTakesAsMuchAsIsPlannedAndFailsWhereThatIsNotThere) {
  const Bytes need = device_->used();
  const auto smaller = device::CreateCpuDevice({.memory = need - device::kDeviceAlignment}).value();
  const auto refused = DeviceGradients::Create(model_, layout_, *smaller, *operators_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().error().code, ErrorCode::kBudget);
}

}  // namespace
}  // namespace penstock::zero
