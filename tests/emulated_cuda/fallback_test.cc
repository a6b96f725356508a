// What the operators do where cuBLASLt has no algorithm for a product with GELU.
#include <gmock/gmock.h>

#include "tests/emulated_cuda/cublaslt.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

using ::testing::HasSubstr;

constexpr OperatorShapes kShapes{
    .batch = 1, .sequence = 5, .width = 16, .heads = 1, .hidden = 64, .vocabulary = 8};

class GeluFallbackTest : public ::testing::Test {
 protected:
  ~GeluFallbackTest() override { emulated_cuda::AnswerToGelu(CUBLAS_STATUS_SUCCESS); }
  const Mode mode_ = TestedModes().back();

  Values Gelu(const char* fused) {
    OperatorsHarness harness(mode_, kShapes);
    EXPECT_THAT(harness.operators().arithmetic(), HasSubstr(fused));
    const Tensor x = harness.Put(RandomValues(mode_.dtype, 5 * 16, 1));
    const Tensor weight = harness.Put(RandomValues(mode_.dtype, 16 * 64, 2));
    const Tensor bias = harness.Put(RandomValues(mode_.dtype, 64, 3));
    const Tensor pre = harness.Empty(5 * 64);
    const Tensor out = harness.Empty(5 * 64);
    harness.operators().LinearGeluForward(harness.stream(), x.data(), weight.data(), bias.data(),
                                          pre.data(), out.data());
    return harness.Get(out);
  }
};

TEST_F(GeluFallbackTest, WithoutAnAlgorithmTheKernelComputesTheSame) {
  const Values fused = Gelu("with GELU and its gradient in products");
  for (const cublasStatus_t status : {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE}) {
    emulated_cuda::AnswerToGelu(status);
    ExpectClose(Gelu("with nothing in products"), fused, 2 * kBFloat16Tolerance, "GELU");
  }
}

TEST_F(GeluFallbackTest, AFailureIsNotTakenForThat) {
  emulated_cuda::AnswerToGelu(CUBLAS_STATUS_INTERNAL_ERROR);
  const auto device = CreateTestedDevice(256_MiB).value();
  const auto made =
      CreateTestedOperators(*device, mode_, {.dtype = mode_.dtype, .shapes = kShapes});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("cuBLASLt: 5 x 64 x 16 product of bf16"));
}

}  // namespace
}  // namespace penstock::kernels
