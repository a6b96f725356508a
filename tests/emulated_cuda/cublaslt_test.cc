// What the emulated cuBLASLt refuses, as nobody would notice if it took everything.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace penstock {
namespace {

constexpr uint64_t kSide = 8;
constexpr size_t kMatrix = kSide * kSide * sizeof(float);
constexpr size_t kWorkspace = 4096;

/// d = a b of fp32 matrices, one behind the other on the device.
class CublasLtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory_), kWorkspace + 3 * kMatrix),
              cudaSuccess);
    workspace_ = memory_;
    a_ = memory_ + kWorkspace;
    b_ = a_ + kMatrix;
    d_ = b_ + kMatrix;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(a_, 0, 2 * kMatrix, stream_), cudaSuccess);
    cublasLtCreate(&handle_);
    cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout_, CUDA_R_32F, kSide, kSide, kSide);
    cublasLtMatmulPreferenceCreate(&preference_);
    Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
    Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{16});
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaStreamDestroy(stream_);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatrixLayoutDestroy(layout_);
    cublasLtMatmulDescDestroy(operation_);
    cublasLtDestroy(handle_);
    cudaFree(memory_);
  }

  template <typename T>
  void Prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t Choose() {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle_, operation_, layout_, layout_, layout_, layout_,
                                          preference_, 1, &found_, &count);
  }
  cublasStatus_t Multiply(const char* a, const char* b, char* d, char* workspace,
                          size_t workspace_bytes = kWorkspace) {
    EXPECT_EQ(Choose(), CUBLAS_STATUS_SUCCESS);
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, operation_, &one, a, layout_, b, layout_, &zero, d, layout_, d,
                          layout_, &found_.algo, workspace, workspace_bytes, stream_);
  }

  char *memory_ = nullptr, *workspace_ = nullptr, *a_ = nullptr, *b_ = nullptr, *d_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t found_{};
};

TEST_F(CublasLtTest, MultipliesAndLeavesNothingInTheWorkspace) {
  const std::vector<float> zeros(kSide * kSide);
  std::vector<float> sums(kSide * kSide, 1);
  std::vector<float> workspace(kWorkspace / sizeof(float));
  ASSERT_EQ(cudaMemsetAsync(workspace_, 0, kWorkspace, stream_), cudaSuccess);
  ASSERT_EQ(Multiply(a_, b_, d_, workspace_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemcpyAsync(sums.data(), d_, kMatrix, cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  ASSERT_EQ(
      cudaMemcpyAsync(workspace.data(), workspace_, kWorkspace, cudaMemcpyDeviceToHost, stream_),
      cudaSuccess);
  EXPECT_EQ(sums, zeros);
  EXPECT_TRUE(std::isnan(workspace.front()));
  EXPECT_TRUE(std::isnan(workspace.back()));
}

TEST_F(CublasLtTest, OperandsLieOnTheDeviceAndAsAlignedAsWasSaid) {
  std::vector<char> host(kMatrix);
  EXPECT_EQ(Multiply(host.data(), b_, d_, workspace_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_, b_, host.data(), workspace_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_ - 8, b_, d_, workspace_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_, b_, d_ + 16, workspace_), CUBLAS_STATUS_INVALID_VALUE) << "beyond the end";
}

TEST_F(CublasLtTest, TheResultOverlapsNoOperand) {
  EXPECT_EQ(Multiply(a_, b_, a_, workspace_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_, b_, b_ + 16, workspace_), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtTest, TheWorkspaceIsAsLargeAsWasSaidAndAligned) {
  EXPECT_EQ(Multiply(a_, b_, d_, workspace_, kWorkspace - 256), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_, b_, d_, workspace_ + 16, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(a_, b_, d_, nullptr), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtTest, AlgorithmsMayNotAddUpInAnUndefinedOrder) {
  Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
  EXPECT_EQ(Choose(), CUBLAS_STATUS_INVALID_VALUE);
  Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  EXPECT_EQ(Choose(), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace penstock
