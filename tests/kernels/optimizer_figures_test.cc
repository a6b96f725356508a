// The figures that updates make of weights, on every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/state/figures.h"
#include "kernels/state/optimizer.h"
#include "tests/kernels/forced_target.h"
#include "tests/kernels/optimizer_steps.h"
#include "tests/kernels/optimizer_tile_data.h"

namespace penstock::kernels {
namespace {

constexpr double kTolerance = 1e-5;

/// The figures of elements begin … end - 1, from what they were and are.
WeightFigures FiguresBetween(const TileData& before, const TileData& after, uint64_t begin,
                             uint64_t end) {
  WeightFigures figures;
  for (uint64_t i = begin; i < end; ++i) {
    const double weight = after.weight(i);
    const double update = after.weight(i) - before.weight(i);
    figures.sum_of_squares += weight * weight;
    figures.update_sum_of_squares += update * update;
    figures.largest = std::max(figures.largest, std::abs(after.weight(i)));
  }
  return figures;
}

void ExpectNear(const WeightFigures& actual, const WeightFigures& expected) {
  EXPECT_NEAR(actual.sum_of_squares, expected.sum_of_squares, kTolerance * expected.sum_of_squares);
  EXPECT_NEAR(actual.update_sum_of_squares, expected.update_sum_of_squares,
              kTolerance * expected.update_sum_of_squares);
  EXPECT_EQ(actual.largest, expected.largest);
}

std::vector<WeightFigures> Blocks(uint64_t count) {
  return std::vector<WeightFigures>((count + kBlockElements - 1) / kBlockElements, {7, 7, 7});
}

/// Every test runs once for each instruction set of this machine.
class OptimizerFiguresTest : public testing::TestWithParam<const char*> {
 private:
  const ForcedTarget forced_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, OptimizerFiguresTest, testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(OptimizerFiguresTest, AreThoseOfTheWeightsBeforeAndAfterInEveryFormat) {
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      TileData data(format, 4200);
      FillNormal(data);
      const TileData before = data;
      std::vector<WeightFigures> figures = Blocks(4200);
      Update(step.scalars, data.tile(), figures);
      ExpectNear(figures[0], FiguresBetween(before, data, 0, 4096));
      ExpectNear(figures[1], FiguresBetween(before, data, 4096, 4200));
    }
  }
}

TEST_P(OptimizerFiguresTest, AreThereForEveryNumberOfElements) {
  const OptimizerStep step = OneStepOfEachRule().front();
  for (const uint64_t count : {1, 31, 32, 33, 100, 1000, 4095, 4096, 4097, 5000}) {
    TileData data({}, count);
    FillNormal(data);
    const TileData before = data;
    std::vector<WeightFigures> figures = Blocks(count);
    Update(step.scalars, data.tile(), figures);
    WeightFigures all;
    for (const WeightFigures& block : figures) all.Add(block);
    ExpectNear(all, FiguresBetween(before, data, 0, count));
  }
}

TEST_P(OptimizerFiguresTest, ChangeNoBitOfTheUpdate) {
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    TileData with({.exp_avg = step.exp_avg, .exp_avg_sq = step.exp_avg_sq}, 5000);
    FillNormal(with);
    TileData without = with;
    std::vector<WeightFigures> figures = Blocks(5000);
    Update(step.scalars, with.tile(), figures);
    Update(step.scalars, without.tile());
    EXPECT_EQ(with.DifferencesFrom(without), 0) << step.name;
  }
}

TEST_P(OptimizerFiguresTest, OfBlocksDoNotDependOnWhatIsUpdatedTogether) {
  const OptimizerStep step = OneStepOfEachRule().front();
  TileData data({}, kBlockElements + 500);
  FillNormal(data);
  TileData again = data;
  std::vector<WeightFigures> together = Blocks(data.count());
  Update(step.scalars, data.tile(), together);
  for (uint64_t block = 0; block < 2; ++block) {
    const uint64_t begin = block * kBlockElements;
    const uint64_t count = std::min(kBlockElements, data.count() - begin);
    std::vector<WeightFigures> alone = Blocks(count);
    Update(step.scalars, Part(again.tile(), begin, count), alone);
    EXPECT_EQ(alone[0].sum_of_squares, together[block].sum_of_squares);
    EXPECT_EQ(alone[0].update_sum_of_squares, together[block].update_sum_of_squares);
    EXPECT_EQ(alone[0].largest, together[block].largest);
  }
}

TEST_P(OptimizerFiguresTest, AWeightThatIsNotFiniteIsTheLargest) {
  const OptimizerStep step = OneStepOfEachRule().front();
  for (const float gradient :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const uint64_t at : {0, 17, 4095, 4999}) {
      TileData data({.gradient = DType::kFloat32}, 5000);
      FillNormal(data);
      data.Set(at, 1, 0, 0, gradient);
      std::vector<WeightFigures> figures = Blocks(5000);
      Update(step.scalars, data.tile(), figures);
      for (size_t block = 0; block < 2; ++block) {
        EXPECT_EQ(std::isfinite(figures[block].largest), block != at / kBlockElements);
      }
    }
  }
}

TEST_P(OptimizerFiguresTest, DestroyedWeightsHaveALargestAndSumsBeyondAllBounds) {
  const AdamScalars scalars = MakeAdamScalars({}, 3e30, 1, 1);
  TileData data({}, kBlockElements);
  FillNormal(data);
  std::vector<WeightFigures> figures = Blocks(kBlockElements);
  AdamUpdate(scalars, data.tile(), figures);
  EXPECT_GT(figures[0].largest, 1e30F);
  EXPECT_TRUE(std::isfinite(figures[0].largest));
  EXPECT_GT(figures[0].update_sum_of_squares, 1e60);
}

TEST(OptimizerFiguresReferenceTest, AreThoseOfTheWeightsBeforeAndAfter) {
  TileData data({}, 5000);
  FillNormal(data);
  const TileData before = data;
  std::vector<WeightFigures> figures = Blocks(5000);
  AdamUpdateReference(MakeAdamScalars({}, 1e-3, 1, 1), data.tile(), figures);
  ExpectNear(figures[0], FiguresBetween(before, data, 0, 4096));
  ExpectNear(figures[1], FiguresBetween(before, data, 4096, 5000));
}

TEST(OptimizerFiguresDeathTest, RefusesAnotherNumberOfBlocks) {
  TileData data({}, 5000);
  std::vector<WeightFigures> figures = Blocks(4096);
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  EXPECT_DEATH(AdamUpdate(scalars, data.tile(), figures), "1 figures for 2 blocks");
}

}  // namespace
}  // namespace penstock::kernels
