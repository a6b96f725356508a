// Tensors of more elements than 32 bits count: kernels on the last block of 3 * 2^31, so that an
// index which is cut off on its way misses it. Only the pages of that block are ever backed.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/random.h"
#include "kernels/convert_elements.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_rows.h"
#include "kernels/state/adam.h"
#include "kernels/state/block_sums.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kElements = uint64_t{3} << 31;
constexpr uint64_t kLast = kElements - kBlockElements;

/// Address space for fp32 tensors of kElements; normal deviates in the last block of each.
class LargeTest : public ::testing::Test {
 protected:
  enum Tensor : uint64_t { kWeight, kMoment, kSquares, kGradient, kTensors };

  void SetUp() override {
    Result<Mapping> memory = Mapping::Create(Bytes{kTensors * kElements * sizeof(float)});
    if (!memory.ok()) GTEST_SKIP() << memory.error().message;
    memory_ = std::move(memory).value();
    for (uint64_t i = 0; i < kTensors; ++i) {
      for (uint64_t j = 0; j < kBlockElements; ++j) {
        const float value = StandardNormal(1, i, j);
        Whole(i)[kLast + j] = i == kSquares ? value * value : value;
      }
    }
  }

  std::span<float> Whole(uint64_t i) const {
    return {reinterpret_cast<float*>(memory_.data()) + i * kElements, kElements};
  }
  std::vector<float> Last(uint64_t i) const {
    const auto last = Whole(i).last(kBlockElements);
    return {last.begin(), last.end()};
  }

  Mapping memory_;
};

TEST_F(LargeTest, AdamUpdatesTheLastBlockOfATile) {
  auto weight = Last(kWeight);
  auto moment = Last(kMoment);
  auto squares = Last(kSquares);
  const auto gradient = Last(kGradient);
  const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.1}, 1e-3, 2, 1);
  AdamUpdateReference(
      scalars,
      {.weight = weight, .exp_avg = moment, .exp_avg_sq = squares, .gradient = gradient.data()});
  const OptimizerTile tile{.weight = Whole(kWeight),
                           .exp_avg = Whole(kMoment),
                           .exp_avg_sq = Whole(kSquares),
                           .gradient = Whole(kGradient).data()};
  AdamUpdate(scalars, Part(tile, kLast, kBlockElements));
  EXPECT_EQ(Last(kWeight), weight);
  EXPECT_EQ(Last(kMoment), moment);
  EXPECT_EQ(Last(kSquares), squares);
}

TEST_F(LargeTest, TheLastPartOfALoopOverElementsIsSummedAndRounded) {
  const auto values = Last(kGradient);
  constexpr int kParts = 1 << 20;
  const Range range = PartOf(kElements, kParts - 1, kParts, kBlockElements);
  ASSERT_EQ(range.end, kElements);
  ASSERT_LE(range.begin, kLast);
  ASSERT_EQ(PartOf(kElements, kParts - 2, kParts, kBlockElements).end, range.begin);

  std::vector<double> sums(range.size() / kBlockElements);
  EXPECT_TRUE(
      BlockSums(Whole(kGradient).data() + range.begin, DType::kFloat32, range.size(), sums));
  double want = 0;
  BlockSumsReference(values.data(), DType::kFloat32, kBlockElements, {&want, 1});
  EXPECT_EQ(sums.back(), want);

  std::vector<BFloat16> rounded(range.size());
  ConvertElements(DType::kFloat32, Whole(kGradient).data() + range.begin, DType::kBFloat16,
                  rounded.data(), range.size());
  for (uint64_t j = 0; j < kBlockElements; ++j) {
    const uint64_t at = rounded.size() - kBlockElements + j;
    ASSERT_EQ(rounded[at].bits, RoundToBFloat16(values[j]).bits) << j;
  }
}

TEST_F(LargeTest, TheNormOfTheLastRowReadsAndWritesThatRow) {
  constexpr uint64_t kRows = kElements / kBlockElements;
  const std::vector<float> ones(kBlockElements, 1.0f);
  const std::vector<float> zeros(kBlockElements, 0.0f);
  const auto norm = [&](const float* x, float* out, uint64_t row) {
    std::vector<float> mean(row + 1);
    std::vector<float> rstd(row + 1);
    LayerNormForwardRows({.width = kBlockElements, .x = x, .weight = ones.data()}, zeros.data(),
                         1e-5f, row, row + 1, out, mean.data(), rstd.data());
  };
  std::vector<float> want(kBlockElements);
  norm(Last(kMoment).data(), want.data(), 0);
  norm(Whole(kMoment).data(), Whole(kWeight).data(), kRows - 1);
  EXPECT_EQ(Last(kWeight), want);
}

}  // namespace
}  // namespace penstock::kernels
