#include "zero/states/value_check.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/offload/support.h"
#include "zero/states/committed_state.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::TileId;
using ::testing::IsEmpty;

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

TEST(ValueCountsTest, AMillionIsHealthyAndWhatComesAfterItIsNot) {
  ValueCounts counts;
  const float after = std::nextafter(kLargeWeight, kInfinite);
  counts.Add(std::vector<float>{0, -1, kLargeWeight, -kLargeWeight});
  EXPECT_EQ(counts.large + counts.not_finite, 0U);
  EXPECT_EQ(counts.largest, 0);
  counts.Add(
      std::vector<float>{1, -after, 3e30F, kNotANumber, -kNotANumber, kInfinite, -kInfinite});
  EXPECT_EQ(counts.large, 2U);
  EXPECT_EQ(counts.not_finite, 4U);
  EXPECT_EQ(counts.largest, 3e30F);
}

/// Tiles of SmallLayout with values that a test sets.
class ValueCheckTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    for (const TileId tile : layout_.Tiles()) {
      weights_.emplace_back(layout_.WeightBytes(tile).value);
      records_.emplace_back(layout_.RecordBytes(tile).value);
    }
  }

  void Set(StateKind kind, size_t tile, uint64_t element, float value) {
    StoreState(kind, layout_, TileId{static_cast<uint32_t>(tile)}, std::span(&value, 1), element,
               weights_[tile].data(), records_[tile].data());
  }

  std::vector<std::string> Faults() const {
    ValueCheck check(layout_.model);
    for (const TileId tile : layout_.Tiles()) {
      check.AddTile(layout_, tile, weights_[offload::Index(tile)], records_[offload::Index(tile)]);
    }
    std::vector<std::string> texts;
    for (const ValueFault& fault : check.Faults()) texts.push_back(ToText(fault));
    return texts;
  }

  const offload::ShardLayout layout_ = offload::SmallLayout(GetParam());
  std::vector<std::vector<std::byte>> weights_;
  std::vector<std::vector<std::byte>> records_;
};

TEST_P(ValueCheckTest, OfValuesThatAreHealthyNothingIsSaid) {
  Set(StateKind::kMaster, 0, 17, -3.5F);
  Set(StateKind::kExpAvgSq, 0, 17, 1e9F);  // a moment may be
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_P(ValueCheckTest, WhatIsWrongIsSummedUpOverTheTilesOfATensor) {
  Set(StateKind::kMaster, 0, 0, kNotANumber);
  Set(StateKind::kMaster, 0, 8191, 2e6F);
  Set(StateKind::kMaster, 1, 3807, -4e6F);  // the last of 12000
  Set(StateKind::kExpAvg, 1, 5, kInfinite);
  Set(StateKind::kExpAvgSq, 3, 4095, kNotANumber);
  EXPECT_THAT(
      Faults(),
      ::testing::ElementsAre(
          "a.weight: of 12000 weights 1 are not finite, and 2 are beyond 1e+06, up to 4e+06",
          "a.weight: of 12000 values of exp_avg 1 are not finite",
          "b.weight: of 4096 values of exp_avg_sq 1 are not finite"));
}

TEST_P(ValueCheckTest, PaddingIsNoValue) {
  Set(StateKind::kMaster, 1, 3808, kNotANumber);
  Set(StateKind::kMaster, 2, 7, kNotANumber);  // of a.bias, which has 7
  EXPECT_THAT(Faults(), IsEmpty());
  Set(StateKind::kMaster, 2, 6, 5e6F);
  EXPECT_THAT(Faults(),
              ::testing::ElementsAre("a.bias: of 7 weights 1 are beyond 1e+06, up to 5e+06"));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ValueCheckTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));

}  // namespace
}  // namespace penstock::zero
