// Attention by cuDNN, as far as it is penstock's: what cuDNN is given and when, what is kept for
// backward, and what is said where it is not there.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "kernels/model/cudnn_attention.h"
#include "tests/emulated_cuda/cudnn.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr LayerShapes kSmall{
    .batch = 2, .sequence = 70, .width = 48, .heads = 3, .hidden = 64, .vocabulary = 40};

Mode ModeNamed(const std::string& name) {
  for (const Mode& mode : TestedModes()) {
    if (mode.name == name) return mode;
  }
  PENSTOCK_CHECK(false);
}

OperatorOptions Options(DType dtype, const LayerShapes& shapes, AttentionKernel attention) {
  OperatorOptions options = LayerOptions(dtype, shapes);
  options.attention = attention;
  return options;
}

class CudnnTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~CudnnTest() override { emulated_cuda::SetCudnn(true); }
  const Mode mode_ = ModeNamed(GetParam());

  /// Output and gradient. `between` runs after forward.
  struct Attended {
    Values out, d_qkv;
  };
  Attended Attend(const LayerShapes& shapes, AttentionKernel attention,
                  const std::function<void(OperatorsHarness&)>& between = {}) {
    OperatorsHarness harness(mode_, shapes, Options(mode_.dtype, shapes, attention));
    const uint64_t size = Rows(shapes) * shapes.width;
    const Tensor qkv = harness.Put(RandomValues(mode_.dtype, 3 * size, 1));
    const Tensor d_out = harness.Put(RandomValues(mode_.dtype, size, 2));
    const Tensor out = harness.Empty(size);
    const Tensor d_qkv = harness.Empty(3 * size);
    LayerOperators op = harness.operators();
    op.AttentionForward(harness.stream(), qkv.data(), out.data());
    if (between) between(harness);
    op.AttentionBackward(harness.stream(), qkv.data(), out.data(), d_out.data(), d_qkv.data());
    return {harness.Get(out), harness.Get(d_qkv)};
  }
};

TEST_P(CudnnTest, ForwardAndBackwardAreThoseOfOwnAttention) {
  for (const LayerShapes& shapes :
       {kSmall,
        LayerShapes{
            .batch = 1, .sequence = 1, .width = 8, .heads = 1, .hidden = 8, .vocabulary = 8},
        LayerShapes{
            .batch = 3, .sequence = 129, .width = 160, .heads = 2, .hidden = 8, .vocabulary = 8}}) {
    const Attended own = Attend(shapes, AttentionKernel::kOwn);
    const Attended cudnn = Attend(shapes, AttentionKernel::kCudnn);
    // Own backward rounds terms of sums, cuDNN's reads the rounded output.
    ExpectClose(cudnn.out, own.out, 3 * Tolerance(mode_.dtype), "out");
    ExpectClose(cudnn.d_qkv, own.d_qkv, 16 * Tolerance(mode_.dtype), "d_qkv");
  }
}

TEST_P(CudnnTest, WhatForwardKeepsOutlivesTheScratchOfOtherOperators) {
  const auto head = [this](OperatorsHarness& harness) {
    const Tensor x = harness.Put(RandomValues(mode_.dtype, Rows(kSmall) * kSmall.width, 3));
    const Tensor table =
        harness.Put(RandomValues(mode_.dtype, kSmall.vocabulary * kSmall.width, 4));
    const Tensor d_table = harness.Zeros(DType::kFloat32, kSmall.vocabulary * kSmall.width);
    const auto targets = harness.PutIntegers(std::vector<int32_t>(Rows(kSmall), 7));
    const auto loss = harness.PutDouble(0);
    harness.operators().HeadForwardBackward(harness.stream(), x.data(), table.data(),
                                            targets.as<int32_t>(), 1, loss.as<double>(), x.data(),
                                            d_table.floats());
    harness.Synchronize();
  };
  EXPECT_EQ(Attend(kSmall, AttentionKernel::kCudnn, head).d_qkv,
            Attend(kSmall, AttentionKernel::kCudnn).d_qkv);
}

TEST_P(CudnnTest, GroupsOfHeadsAndOfSequencesChangeNoBit) {
  const AttentionCall call{mode_.dtype, 4, 70, 48, 6};
  const uint64_t size = 4 * 70 * 48;
  DeviceHarness harness;
  auto& stream = static_cast<device::CudaStream&>(harness.stream());
  const auto library = LoadCudnn().value();
  const Tensor qkv = harness.Put(mode_.dtype, RandomValues(mode_.dtype, 3 * size, 1));
  const Tensor d_out = harness.Put(mode_.dtype, RandomValues(mode_.dtype, size, 2));
  const Tensor out = harness.Empty(mode_.dtype, size);
  std::vector<Values> gradients;
  const Bytes of_head = 128 * (128 * 2_B);
  for (const uint64_t heads : {24, 13, 5, 1}) {
    const CudnnAttentionPlan plan(call, of_head * heads);
    EXPECT_EQ(plan.sequences * plan.heads, heads == 13 ? 12U : heads == 5 ? 3U : heads);
    const auto memory = harness.device().Allocate(plan.statistics + plan.workspace, "both").value();
    const auto attention = CudnnAttention::Create(*library, call, plan, memory.data()).value();
    std::byte* const workspace = memory.data() + plan.statistics.value;
    const Tensor d_qkv = harness.Empty(mode_.dtype, 3 * size);
    attention->Forward(stream, qkv.data(), out.data(), workspace);
    attention->Backward(stream, qkv.data(), out.data(), d_out.data(), d_qkv.data(), workspace);
    gradients.push_back(harness.Get(d_qkv));
  }
  for (const Values& gradient : gradients) EXPECT_EQ(gradient, gradients.front());
}

TEST_P(CudnnTest, BackwardOfOtherTensorsThanForwardsIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  OperatorsHarness harness(mode_, kSmall, Options(mode_.dtype, kSmall, AttentionKernel::kCudnn));
  const Tensor any = harness.Empty(3 * Rows(kSmall) * kSmall.width);
  EXPECT_DEATH(harness.operators().AttentionBackward(harness.stream(), any.data(), any.data(),
                                                     any.data(), any.data()),
               "the backward of attention without its forward");
}

TEST_P(CudnnTest, ArithmeticNamesTheLibraryOfAttention) {
  const auto arithmetic = [this](AttentionKernel attention) {
    return OperatorsHarness(mode_, kSmall, Options(mode_.dtype, kSmall, attention))
        .operators()
        .arithmetic();
  };
  EXPECT_THAT(arithmetic(AttentionKernel::kOwn), HasSubstr(", own attention, "));
  EXPECT_THAT(arithmetic(AttentionKernel::kCudnn), HasSubstr(", attention by emulated cuDNN, "));
}

Error Refusal(const OperatorOptions& options) {
  const auto device = CreateTestedDevice(256_MiB).value();
  const auto made = CreateModelOperators(*device, options);
  return made.ok() ? MakeError(ErrorCode::kNotFound, "it was made") : made.error();
}

TEST_P(CudnnTest, WhereItIsNotThereTheErrorSaysWhatToDo) {
  emulated_cuda::SetCudnn(false);
  const Error error = Refusal(Options(mode_.dtype, kSmall, AttentionKernel::kCudnn));
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("set penstock.attention to \"own\""));
  EXPECT_EQ(Refusal(Options(mode_.dtype, kSmall, AttentionKernel::kOwn)).message, "it was made");
}

TEST_P(CudnnTest, MoreMemoryThanWasPlannedIsRefusedBeforeAnythingRuns) {
  emulated_cuda::SetCudnn(true, 1_GiB);
  EXPECT_THAT(Refusal(Options(mode_.dtype, kSmall, AttentionKernel::kCudnn)).message,
              AllOf(HasSubstr("it needs 1.0"), HasSubstr("were planned")));
}

TEST_P(CudnnTest, HeadsThatItCannotTakeAreRefusedInThePlan) {
  const auto planned = [this](uint64_t head) {
    const LayerShapes shapes{1, 8, 2 * head, 2, 8, 8};
    return OperatorScratch(device::Kind::kCuda,
                           Options(mode_.dtype, shapes, AttentionKernel::kCudnn));
  };
  EXPECT_TRUE(planned(256).ok());
  for (const uint64_t head : {12, 264}) {
    EXPECT_EQ(planned(head).error().code, ErrorCode::kInvalidArgument) << head;
    EXPECT_THAT(planned(head).error().message, HasSubstr("multiple of 8 elements"));
  }
  const auto single = OperatorScratch(device::Kind::kCuda,
                                      Options(DType::kFloat32, kSmall, AttentionKernel::kCudnn));
  EXPECT_THAT(single.error().message, HasSubstr("bf16 or fp16"));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudnnTest, ::testing::Values("bf16", "fp16"));

}  // namespace
}  // namespace penstock::kernels
