// What the operators do where cuBLASLt has no algorithm for a product with GELU.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/emulated_cuda/cublaslt.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

using ::testing::HasSubstr;

constexpr LayerShapes kShapes{
    .batch = 1, .sequence = 5, .width = 16, .heads = 1, .hidden = 64, .vocabulary = 8};

class GeluFallbackTest : public ::testing::Test {
 protected:
  ~GeluFallbackTest() override { Answer(CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_SUCCESS); }
  static void Answer(cublasStatus_t to_gelu, cublasStatus_t to_gradient) {
    emulated_cuda::AnswerToGelu(to_gelu);
    emulated_cuda::AnswerToGradientOfGelu(to_gradient);
  }
  static Mode BFloat16Mode() {
    const std::vector<Mode> modes = TestedModes();
    return *std::ranges::find(modes, "bf16", &Mode::name);
  }
  const Mode mode_ = BFloat16Mode();

  /// GELU, and behind it the gradient of what it is taken of.
  Values Gelu(const std::string& fused) {
    OperatorsHarness harness(mode_, kShapes);
    EXPECT_THAT(harness.operators().arithmetic(), HasSubstr("with " + fused + " in products"));
    const Tensor x = harness.Put(RandomValues(mode_.dtype, 5 * 16, 1));
    const Tensor weight = harness.Put(RandomValues(mode_.dtype, 16 * 64, 2));
    const Tensor bias = harness.Put(RandomValues(mode_.dtype, 64, 3));
    const Tensor pre = harness.Empty(5 * 64);
    const Tensor out = harness.Empty(5 * 64);
    const Tensor d_pre = harness.Empty(5 * 64);
    LayerOperators op = harness.operators();
    op.LinearGeluForward(harness.stream(), x.data(), weight.data(), bias.data(), pre.data(),
                         out.data());
    op.LinearGeluBackwardInput(harness.stream(), x.data(), weight.data(), pre.data(), d_pre.data());
    Values both = harness.Get(out);
    const Values gradient = harness.Get(d_pre);
    both.insert(both.end(), gradient.begin(), gradient.end());
    return both;
  }
};

TEST_F(GeluFallbackTest, WithoutAnAlgorithmTheKernelComputesTheSame) {
  const Values fused = Gelu("GELU and its gradient");
  for (const cublasStatus_t none :
       {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE, emulated_cuda::kNoneFound}) {
    Answer(none, none);
    ExpectClose(Gelu("nothing"), fused, 2 * kBFloat16Tolerance, "neither");
    Answer(CUBLAS_STATUS_SUCCESS, none);
    ExpectClose(Gelu("GELU"), fused, 2 * kBFloat16Tolerance, "GELU alone");
    Answer(none, CUBLAS_STATUS_SUCCESS);
    ExpectClose(Gelu("the gradient of GELU"), fused, 2 * kBFloat16Tolerance, "its gradient alone");
  }
}

TEST_F(GeluFallbackTest, AFailureIsNotTakenForThat) {
  Answer(CUBLAS_STATUS_INTERNAL_ERROR, CUBLAS_STATUS_SUCCESS);
  const auto device = CreateTestedDevice(256_MiB).value();
  const auto made = CreateTestedOperators(*device, mode_, LayerOptions(mode_.dtype, kShapes));
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("cuBLASLt: 5 x 64 x 16 product of bf16"));
}

}  // namespace
}  // namespace penstock::kernels
