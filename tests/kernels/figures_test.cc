#include "kernels/state/figures.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();
using Parts = std::vector<TensorPart>;

TEST(FiguresTest, OfTwoPartsAreThoseOfBoth) {
  GradientFigures gradient{.sum_of_squares = 1, .largest = 2, .nonfinite = 3};
  gradient.Add({.sum_of_squares = 10, .largest = 1, .nonfinite = 4});
  EXPECT_EQ(gradient.sum_of_squares, 11);
  EXPECT_EQ(gradient.largest, 2);
  EXPECT_EQ(gradient.nonfinite, 7U);
  WeightFigures weights{.sum_of_squares = 1, .update_sum_of_squares = 2, .largest = 3};
  weights.Add({.sum_of_squares = 10, .update_sum_of_squares = 20, .largest = 5});
  EXPECT_EQ(weights.sum_of_squares, 11);
  EXPECT_EQ(weights.update_sum_of_squares, 22);
  EXPECT_EQ(weights.largest, 5);
}

TEST(FiguresTest, ALargestWeightThatIsNotFiniteStays) {
  for (const float value : {kInfinite, kNan}) {
    for (const bool first : {true, false}) {
      WeightFigures weights{.largest = first ? value : 1e38F};
      weights.Add({.largest = first ? 1e38F : value});
      EXPECT_FALSE(weights.largest < kInfinite);
    }
  }
}

TEST(TensorPartsTest, ABlockThatTensorsShareIsCutBetweenThem) {
  // A weight of two and a half blocks, a bias of 64, and a weight up to the padding.
  const TensorRange tensors[] = {{0, 10240}, {10240, 10304}, {10304, 20000}};
  EXPECT_EQ(TensorParts(tensors, 0, 5 * kBlockElements), (Parts{{0, 0, 8192},
                                                                {0, 8192, 10240},
                                                                {1, 10240, 10304},
                                                                {2, 10304, 12288},
                                                                {2, 12288, 16384},
                                                                {2, 16384, 20000}}));
}

TEST(TensorPartsTest, ATileHasTheSamePartsButThatItsEndsCutThem) {
  const TensorRange tensors[] = {{0, 10240}, {10240, 10304}, {10304, 20000}};
  EXPECT_EQ(TensorParts(tensors, kBlockElements, 3 * kBlockElements),
            (Parts{{0, 4096, 8192}, {0, 8192, 10240}, {1, 10240, 10304}, {2, 10304, 12288}}));
  EXPECT_EQ(TensorParts(tensors, 4 * kBlockElements, 5 * kBlockElements),
            (Parts{{2, 16384, 20000}}));
}

TEST(TensorPartsTest, ATensorWithinABlockIsOnePart) {
  const TensorRange tensors[] = {{10, 20}, {4090, 4100}, {4100, 8192}};
  EXPECT_EQ(TensorParts(tensors, 0, 8192),
            (Parts{{0, 10, 20}, {1, 4090, 4096}, {1, 4096, 4100}, {2, 4100, 8192}}));
}

TEST(TensorPartsTest, EveryElementOfATensorIsInOnePartAndWholeBlocksLieTogether) {
  for (uint64_t begin = 0; begin < 3 * kBlockElements; begin += 517) {
    for (uint64_t size = 1; size < 4 * kBlockElements; size += 1023) {
      const TensorRange tensors[] = {{begin, begin + size}};
      uint64_t next = begin;
      for (const TensorPart& part : TensorParts(tensors, 0, 9 * kBlockElements)) {
        EXPECT_EQ(part.begin, next);
        next = part.end;
        if (part.end - part.begin < kBlockElements) continue;
        EXPECT_EQ(part.begin % kBlockElements, 0U);
        EXPECT_EQ(part.end % kBlockElements, 0U);
      }
      EXPECT_EQ(next, begin + size);
    }
  }
  EXPECT_TRUE(TensorParts({}, 0, 8192).empty());
}

}  // namespace
}  // namespace penstock::kernels
