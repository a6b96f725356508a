// The plan of the CUDA operators, which needs no GPU.
#include "kernels/model/cuda_plan.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/model/cuda_operand.h"
#include "tests/kernels/layer_operators.h"

namespace penstock::kernels {
namespace {

LayerShapes Layer(uint64_t batch, uint64_t sequence, uint64_t heads, uint64_t vocabulary) {
  return {.batch = batch,
          .sequence = sequence,
          .width = 64 * heads,
          .heads = heads,
          .hidden = 256 * heads,
          .vocabulary = vocabulary};
}

CudaHeadPlan HeadPlan(DType dtype, const LayerShapes& shapes, bool adds_once = false) {
  return CudaHeadPlan({dtype, Rows(shapes), shapes.width, shapes.vocabulary}, adds_once);
}

CudaAttentionPlan AttentionPlan(DType dtype, const LayerShapes& shapes) {
  return CudaAttentionPlan({dtype, shapes.batch, shapes.sequence, shapes.width, shapes.heads});
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
  EXPECT_EQ(HeadPlan(DType::kBFloat16, Layer(8, 1024, 12, 50257)).rows, 1280U);
  EXPECT_EQ(HeadPlan(DType::kBFloat16, Layer(8, 1024, 12, 10000000)).rows, 128U);
  EXPECT_EQ(HeadPlan(DType::kBFloat16, Layer(1, 100, 12, 50257)).rows, 100U);
}

TEST(CudaPlanTest, ProductsOfTheHeadHaveWholeColumnsAndTheRestOfAVocabularyApart) {
  const auto cut = [](uint64_t vocabulary) {
    const CudaHeadPlan plan = HeadPlan(DType::kBFloat16, Layer(8, 1024, 12, vocabulary));
    EXPECT_EQ(plan.logit_stride % kLogitColumns, 0U) << vocabulary;
    EXPECT_GE(plan.logit_stride, plan.whole + (plan.rest > 0 ? kLogitColumns : 0)) << vocabulary;
    return std::pair(plan.whole, plan.rest);
  };
  EXPECT_EQ(cut(50257), std::pair(50240UL, 17UL));
  EXPECT_EQ(cut(50304), std::pair(50304UL, 0UL));
  EXPECT_EQ(cut(50264), std::pair(50264UL, 0UL)) << "rows of a multiple of 16 bytes";
  EXPECT_EQ(cut(11), std::pair(0UL, 11UL));
}

TEST(CudaPlanTest, TheHeadsSumsOfTwoProductsTakeThePlaceOfTheLogits) {
  const auto plan = [](DType dtype, uint64_t vocabulary) {
    return HeadPlan(dtype, Layer(1, 100, 32, vocabulary));
  };
  const CudaHeadPlan narrow = plan(DType::kBFloat16, 257);
  EXPECT_TRUE(narrow.sums_d_x);
  EXPECT_GE(narrow.gradient, 100 * 2048 * sizeof(float)) << "the width is more than the vocabulary";
  EXPECT_FALSE(plan(DType::kBFloat16, 256).sums_d_x);
  EXPECT_FALSE(plan(DType::kBFloat16, 11).sums_d_x);
  EXPECT_FALSE(plan(DType::kFloat32, 257).sums_d_x) << "fp32 is added up where it goes";
  const CudaHeadPlan large = HeadPlan(DType::kBFloat16, Layer(8, 1024, 12, 50257));
  EXPECT_LE(large.rows * large.logit_stride * sizeof(float), (256_MiB).value);
  EXPECT_EQ(large.scratch.value - large.table_end, kLogitColumns * 768 * 2);
}

TEST(CudaPlanTest, AHeadThatAddsSeveralChunksOnceHasRoomForTheTablesGradientBehindTheRest) {
  const LayerShapes several = Layer(8, 1024, 12, 50257);
  const CudaHeadPlan piecewise = HeadPlan(DType::kBFloat16, several);
  const CudaHeadPlan once = HeadPlan(DType::kBFloat16, several, true);
  EXPECT_FALSE(piecewise.table.has_value());
  EXPECT_EQ(once.table, piecewise.scratch.value);
  EXPECT_EQ(once.scratch - piecewise.scratch,
            AlignUp(Bytes{50257 * 768 * sizeof(float)}, device::kDeviceAlignment));
  EXPECT_FALSE(HeadPlan(DType::kBFloat16, Layer(1, 1024, 12, 50257), true).table.has_value());
}

TEST(CudaPlanTest, HeadsOfFp32AttentionDivideAllOfThem) {
  EXPECT_EQ(AttentionPlan(DType::kFloat32, Layer(8, 1024, 12, 256)).heads, 12U);
  EXPECT_EQ(AttentionPlan(DType::kFloat32, Layer(8, 4096, 12, 256)).heads, 4U);
  EXPECT_EQ(AttentionPlan(DType::kFloat32, Layer(8, 16384, 12, 256)).heads, 1U);
}

AttentionCall Heads(uint64_t batch, uint64_t sequence, uint64_t heads) {
  return {DType::kBFloat16, batch, sequence, 64 * heads, heads};
}

TEST(CudaPlanTest, GroupsOfCudnnsBackwardDivideTheWorkAndTakeAtMost512MiBOfScores) {
  const auto group = [](const AttentionCall& call) {
    const CudnnAttentionPlan plan(call);
    EXPECT_EQ(call.batch % plan.sequences, 0U);
    EXPECT_EQ(call.heads % plan.heads, 0U);
    return std::pair(plan.sequences, plan.heads);
  };
  EXPECT_EQ(group(Heads(8, 2048, 32)), std::pair(2UL, 32UL)) << "64 heads of 8 MiB";
  EXPECT_EQ(group(Heads(2, 8192, 32)), std::pair(1UL, 4UL));
  EXPECT_EQ(group(Heads(1, 8192, 25)), std::pair(1UL, 1UL)) << "25 is 5 x 5, and 4 fit";
  EXPECT_EQ(group(Heads(1, 32768, 32)), std::pair(1UL, 1UL)) << "one head needs 2 GiB";
}

/// As cuDNN 9.19 has asked for on an H100 (sm_90), with 4 heads.
TEST(CudaPlanTest, CudnnsWorkspaceIsWhatItAsksForAndAMiB) {
  const auto workspace = [](uint64_t sequence) {
    return CudnnAttentionPlan(Heads(1, sequence, 4)).workspace;
  };
  EXPECT_EQ(workspace(2048), 32_MiB + 32_KiB + 1_MiB);
  EXPECT_GE(workspace(2049), Bytes{4 * (2112 * 2176 * 2 + 2049 * 4)} + 1_MiB);
}

TEST(CudaPlanTest, CudnnsStatisticsOfEachAttentionLieBehindWhatOthersUse) {
  OperatorOptions options = LayerOptions(DType::kBFloat16, Layer(2, 1024, 12, 50257));
  const CudaScratchPlan own(options);
  EXPECT_EQ(own.kept, Bytes());
  options.attention = AttentionKernel::kCudnn;
  options.calls.emplace_back(Heads(2, 1024, 12));
  options.calls.emplace_back(Heads(1, 512, 12));
  const CudaScratchPlan cudnn(options);
  EXPECT_EQ(cudnn.kept, Bytes{(2 * 1024 + 512) * 12 * 4}) << "naming a call twice changes nothing";
  EXPECT_EQ(cudnn.all, kCudaWorkspace + cudnn.shared + cudnn.kept);
  EXPECT_EQ(cudnn.shared, own.shared) << "the head needs most";
}

TEST(CudaPlanTest, ScratchOfBf16AttentionGrowsWithTheRowsAlone) {
  const auto scratch = [](uint64_t sequence) {
    return CudaScratchPlan(LayerOptions(DType::kBFloat16, Layer(1, sequence, 16, 256))).all.value;
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
