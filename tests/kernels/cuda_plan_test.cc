// The plan of the CUDA operators, which needs no GPU.
#include "kernels/model/cuda_plan.h"

#include <gtest/gtest.h>

#include "kernels/model/cuda_operand.h"

namespace penstock::kernels {
namespace {

OperatorOptions Options(DType dtype, uint64_t batch, uint64_t sequence, uint64_t heads,
                        uint64_t vocabulary) {
  return {.dtype = dtype,
          .shapes = {.batch = batch,
                     .sequence = sequence,
                     .width = 64 * heads,
                     .heads = heads,
                     .hidden = 256 * heads,
                     .vocabulary = vocabulary}};
}

TEST(CudaPlanTest, PartsCoverEveryRowAndNoneIsEmpty) {
  for (const uint64_t rows : {1, 31, 32, 33, 4096, 4097, 8191, 100000}) {
    const RowParts parts(rows);
    EXPECT_GE(parts.count * parts.rows_of_part, rows) << rows;
    EXPECT_LT((parts.count - 1) * parts.rows_of_part, rows) << rows;
    EXPECT_LE(parts.count, 128U) << rows;
  }
}

TEST(CudaPlanTest, LogitsOfALargeVocabularyAreCutIntoChunksOfAtLeast128Rows) {
  EXPECT_EQ(CudaPlan(Options(DType::kBFloat16, 8, 1024, 12, 50257)).head_rows, 1280U);
  EXPECT_EQ(CudaPlan(Options(DType::kBFloat16, 8, 1024, 12, 10000000)).head_rows, 128U);
  EXPECT_EQ(CudaPlan(Options(DType::kBFloat16, 1, 100, 12, 50257)).head_rows, 100U);
}

TEST(CudaPlanTest, HeadsOfFp32AttentionDivideAllOfThem) {
  EXPECT_EQ(CudaPlan(Options(DType::kFloat32, 8, 1024, 12, 256)).attention_heads, 12U);
  EXPECT_EQ(CudaPlan(Options(DType::kFloat32, 8, 4096, 12, 256)).attention_heads, 4U);
  EXPECT_EQ(CudaPlan(Options(DType::kFloat32, 8, 16384, 12, 256)).attention_heads, 1U);
}

TEST(CudaPlanTest, ScratchOfBf16AttentionGrowsWithTheRowsAlone) {
  const auto scratch = [](uint64_t sequence) {
    return CudaPlan(Options(DType::kBFloat16, 1, sequence, 16, 256)).scratch.value;
  };
  EXPECT_LT(scratch(1 << 16), 3 * scratch(1 << 15));
}

TEST(CudaOperandTest, EachIsAlignedAsItsOwnStridesAndUnitAllow) {
  const auto alignment = [](DType dtype, uint64_t stride, uint64_t batch_stride, uint64_t unit) {
    return AlignmentOf(
        {.dtype = dtype, .stride = stride, .batch_stride = batch_stride, .unit = unit});
  };
  EXPECT_EQ(alignment(DType::kBFloat16, 48, 0, 0), 16U);
  EXPECT_EQ(alignment(DType::kBFloat16, 1024, 0, 0), 16U) << "no more than what is promised";
  EXPECT_EQ(alignment(DType::kBFloat16, 45, 0, 0), 2U);
  EXPECT_EQ(alignment(DType::kFloat32, 45, 0, 0), 4U) << "an odd width is no odd address";
  EXPECT_EQ(alignment(DType::kFloat32, 46, 0, 0), 8U);
  EXPECT_EQ(alignment(DType::kFloat32, 48, 15, 0), 4U);
  EXPECT_EQ(alignment(DType::kBFloat16, 192, 0, 45), 2U) << "behind tensors of odd sizes";
  EXPECT_EQ(alignment(DType::kBFloat16, 0, 0, 12), 8U) << "a bias has no stride";
}

TEST(CudaOperandTest, GeluIsTakenInBf16OfRowsAndWeightsAtMultiplesOf8Elements) {
  const auto takes = [](DType dtype, uint64_t stride, uint64_t unit = 8) {
    return TakesGelu({.dtype = dtype, .stride = stride, .unit = unit},
                     {.dtype = dtype, .stride = stride});
  };
  EXPECT_TRUE(takes(DType::kBFloat16, 64));
  EXPECT_TRUE(takes(DType::kBFloat16, 24));
  EXPECT_FALSE(takes(DType::kBFloat16, 60));
  EXPECT_FALSE(takes(DType::kBFloat16, 101));
  EXPECT_FALSE(takes(DType::kBFloat16, 64, 4));
  EXPECT_FALSE(takes(DType::kFloat32, 64));
}

}  // namespace
}  // namespace penstock::kernels
