#include "front/gradient_inbox.h"

#include <gmock/gmock.h>

#include <cstring>
#include <iterator>
#include <limits>

#include "front/model_text.h"
#include "tests/front/c_training.h"
#include "zero/plan/partitioner.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An inbox with gradients in plain memory.
class Inbox {
 public:
  explicit Inbox(uint64_t micro_batches, bool holds = false)
      : layout_(
            zero::MakeLayout(ParseModel(ModelOf("bf16").dump()).value(), DType::kFloat32, 4096)) {
    size_t size = 0;
    for (const TileId tile : layout_.Tiles()) {
      begins_.push_back(size);
      size += layout_.GradientBytes(tile).value;
    }
    bytes_.resize(size);
    inbox_.emplace(
        GradientInbox::Create(
            layout_, micro_batches, holds,
            {.place = [this](TileId tile) { return bytes_.data() + begins_[offload::Index(tile)]; },
             .last =
                 [this](ModuleId module) {
                   last_.push_back(static_cast<uint32_t>(offload::Index(module)));
                 },
             .complete =
                 [this](ModuleId module) {
                   complete_.push_back(static_cast<uint32_t>(offload::Index(module)));
                 }})
            .value());
  }
  /// The first element of a unit's first tensor.
  float First(uint32_t unit) const {
    const TileId tile = layout_.TilesOf(ModuleId{unit})[0];
    return Load(bytes_.data() + begins_[offload::Index(tile)], PENSTOCK_BFLOAT16, 0);
  }
  const std::byte* BytesOf(uint32_t unit) const {
    return bytes_.data() + begins_[offload::Index(layout_.TilesOf(ModuleId{unit})[0])];
  }
  Status Add(uint32_t unit, uint32_t tensor, float value) {
    const std::vector<float> values(kElements[tensor], value);
    return inbox_->Add(ModuleId{unit}, tensor, values.data(), DType::kFloat32, 2);
  }
  GradientInbox& operator*() { return *inbox_; }
  const std::vector<uint32_t>& last() const { return last_; }
  const std::vector<uint32_t>& complete() const { return complete_; }

 private:
  offload::ShardLayout layout_;
  std::vector<size_t> begins_;
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> last_;
  std::vector<uint32_t> complete_;
  std::optional<GradientInbox> inbox_;
};

TEST(GradientInboxTest, AUnitIsCompleteWithTheLastGradientOfItsTrainedTensors) {
  Inbox inbox(1);
  ASSERT_TRUE(inbox.Add(2, 0, 1).ok());
  ASSERT_TRUE(inbox.Add(1, 1, 1).ok());
  EXPECT_TRUE(inbox.complete().empty());
  ASSERT_TRUE(inbox.Add(1, 0, 1).ok());
  ASSERT_TRUE(inbox.Add(2, 1, 1).ok());
  EXPECT_THAT(inbox.complete(), ElementsAre(1, 2));
}

/// The bits of a large gradient of which so many micro-batches were added: by `threads`, or if
/// `shares` is above 0 by shares, in another order of these for each micro-batch, and in two
/// pieces.
std::vector<std::byte> LargeGradient(const std::string& dtype, uint64_t micro_batches, int threads,
                                     uint64_t shares = 0) {
  constexpr uint64_t kLarge = 600'001;
  const json model{{"units",
                    {{{"name", "u"},
                      {"repeated", false},
                      {"tensors", {{{"name", "w"}, {"shape", {kLarge}}, {"group", 0}}}}}}},
                   {"groups", {{{"name", "g"}, {"dtype", dtype}}}}};
  const offload::ShardLayout layout =
      zero::MakeLayout(ParseModel(model.dump()).value(), DType::kFloat32, 1 << 20);
  std::vector<std::byte> place(layout.GradientBytes(TileId{0}).value);
  GradientInbox inbox = GradientInbox::Create(layout, micro_batches, /*holds=*/false,
                                              {.place = [&](TileId) { return place.data(); },
                                               .last = [](ModuleId) {},
                                               .complete = [](ModuleId) {}})
                            .value();
  std::vector<float> values(kLarge);
  for (uint64_t i = 0; i < kLarge; ++i) values[i] = 0.001F * static_cast<float>(i % 10'007);
  for (uint64_t i = 0; i < micro_batches; ++i) {
    const float* given = i == 1 ? nullptr : values.data();
    if (shares == 0) {
      EXPECT_TRUE(inbox.Add(ModuleId{0}, 0, given, DType::kFloat32, threads).ok());
      continue;
    }
    const GradientInbox::Announced gradient =
        inbox.Announce(ModuleId{0}, 0, DType::kFloat32).value();
    const uint64_t cut = 100'000 * (i + 1);
    for (uint64_t share = 0; share < shares; ++share) {
      const CallTeam::Share of{.number = (share + i) % shares, .of = shares};
      inbox.PutShare(gradient, 0, cut, given, of);
      inbox.PutShare(gradient, cut, kLarge - cut, given == nullptr ? given : given + cut, of);
    }
    inbox.Arrived(gradient);
  }
  return place;
}

TEST(GradientInboxTest, SeveralThreadsAddALargeGradientToTheBitsOfOne) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const uint64_t micro_batches : {1, 3}) {
      const std::vector<std::byte> expected = LargeGradient(dtype, micro_batches, 1);
      EXPECT_TRUE(LargeGradient(dtype, micro_batches, 4) == expected) << dtype << micro_batches;
      for (const uint64_t shares : {1, 2, 3}) {
        EXPECT_TRUE(LargeGradient(dtype, micro_batches, 1, shares) == expected) << shares;
      }
      const int code = CodeOf(dtype);
      const uint64_t last = 600'000;
      EXPECT_NEAR(Load(expected.data(), code, last),
                  0.001 * static_cast<double>((micro_batches == 1 ? 1 : 2) * (last % 10'007)), 0.1);
    }
  }
}

TEST(GradientInboxTest, SumsAreRoundedOnceAndNotWithEachMicroBatch) {
  // In bf16, 256 + 1 is 256; 256 + 1 + 1 is 258.
  Inbox inbox(3);
  for (const float value : {256.0F, 1.0F, 1.0F}) {
    ASSERT_TRUE(inbox.Add(0, 0, value).ok());
    ASSERT_TRUE(inbox.Add(0, 1, value).ok());
  }
  EXPECT_THAT(inbox.complete(), ElementsAre(0));
  EXPECT_EQ(inbox.First(0), 258);
}

/// Values whose sums show another order, a lost sign of zero, or a second rounding.
float Awkward(uint64_t i, uint64_t micro_batch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[][3] = {
      {-0.0F, -0.0F, -0.0F},  {0.0F, -0.0F, 0.0F},       {1e8F, 1.0F, -1e8F},
      {256.0F, 1.0F, 1.0F},   {1e-40F, 3e-40F, -1e-40F}, {6e4F, 6e4F, -1.2e5F},
      {3e38F, 3e38F, -3e38F}, {kInfinity, 1.0F, 2.0F},   {1.0F, 0.00390625F, 1e-7F}};
  return values[i % std::size(values)][micro_batch];
}

TEST(GradientInboxTest, SumsHaveTheBitsOfPlainAdditionInTheOrderOfMicroBatchesAndOneRounding) {
  for (const uint64_t given : {1, 2, 3}) {
    Inbox inbox(3);
    std::vector<float> sums(kElements[0]);
    for (uint64_t micro_batch = 0; micro_batch < given; ++micro_batch) {
      std::vector<float> values(kElements[0]);
      for (uint64_t i = 0; i < values.size(); ++i) {
        values[i] = Awkward(i, micro_batch);
        sums[i] = micro_batch == 0 ? values[i] : sums[i] + values[i];
      }
      for (uint32_t unit = 0; unit < kUnits; ++unit) {
        ASSERT_TRUE((*inbox).Add(ModuleId{unit}, 0, values.data(), DType::kFloat32, 2).ok());
        ASSERT_TRUE(inbox.Add(unit, 1, 1).ok());
      }
    }
    ASSERT_TRUE((*inbox).CompleteAll(2).ok());
    Values expected(PENSTOCK_BFLOAT16, kElements[0]);
    for (uint64_t i = 0; i < kElements[0]; ++i) expected.Set(i, sums[i]);
    EXPECT_EQ(std::memcmp(inbox.BytesOf(2), expected.bytes.data(), expected.bytes.size()), 0)
        << given;
  }
}

TEST(GradientInboxTest, ATensorThatIsFullIsNotRoundedASecondTimeBesideOneThatIsNot) {
  Inbox inbox(2);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(inbox.Add(unit, 0, 3).ok());
    ASSERT_TRUE(inbox.Add(unit, 1, 3).ok());
  }
  ASSERT_TRUE((*inbox).CompleteAll(2).ok());
  EXPECT_EQ(inbox.First(1), 6);
}

TEST(GradientInboxTest, AnAnnouncedGradientCountsAtOnceAndIsAddedWhenItHasArrived) {
  Inbox inbox(2);
  using Announced = GradientInbox::Announced;
  std::vector<Announced> under_way;
  for (int i = 0; i < 2; ++i) {
    for (const uint32_t tensor : {0U, 1U}) {
      under_way.push_back((*inbox).Announce(ModuleId{0}, tensor, DType::kFloat32).value());
    }
  }
  EXPECT_THAT(inbox.last(), ElementsAre(0));
  EXPECT_TRUE(inbox.complete().empty());
  EXPECT_FALSE((*inbox).Announce(ModuleId{0}, 0, DType::kFloat32).ok()) << "a third micro-batch";
  for (const Announced& gradient : under_way) {
    const std::vector<float> values(gradient.elements, 3);
    const uint64_t half = gradient.elements / 2;
    (*inbox).Put(gradient, half, gradient.elements - half, values.data(), 2);
    (*inbox).Put(gradient, 0, half, values.data(), 1);
    (*inbox).Arrived(gradient);
  }
  EXPECT_THAT(inbox.complete(), ElementsAre(0));
  EXPECT_EQ(inbox.First(0), 6);
}

TEST(GradientInboxTest, OnlyTheFirstGradientOfTheWeightsDtypeGoesStraightToItsPlace) {
  for (const uint64_t micro_batches : {1U, 2U}) {
    Inbox inbox(micro_batches);
    const auto direct = [&](uint32_t tensor, DType dtype) {
      return (*inbox).Announce(ModuleId{0}, tensor, dtype).value().direct != nullptr;
    };
    EXPECT_EQ(direct(0, DType::kBFloat16), micro_batches == 1);
    EXPECT_TRUE(direct(1, DType::kFloat32));
    if (micro_batches == 1) continue;
    EXPECT_FALSE(direct(1, DType::kFloat32)) << "it is to be added";
    EXPECT_FALSE(direct(0, DType::kFloat32));
  }
}

TEST(GradientInboxTest, FewerMicroBatchesAreCompletedAtTheEnd) {
  Inbox inbox(3);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) ASSERT_TRUE(inbox.Add(unit, tensor, 3).ok());
  }
  EXPECT_TRUE(inbox.complete().empty());
  ASSERT_TRUE((*inbox).CompleteAll(2).ok());
  EXPECT_THAT(inbox.complete(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(inbox.First(1), 3);
  EXPECT_FALSE(inbox.Add(0, 0, 1).ok()) << "the norm was taken without it";
}

TEST(GradientInboxTest, WhatItHoldsIsReadAndReplacedUntilItIsComplete) {
  Inbox inbox(2, /*holds=*/true);
  std::vector<float> values(kElements[0]);
  EXPECT_THAT((*inbox).Read(ModuleId{1}, 0, values.data(), 2).error().message,
              HasSubstr("u1.w has no gradient in this step yet"));
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) ASSERT_TRUE(inbox.Add(unit, tensor, 3).ok());
  }
  ASSERT_TRUE((*inbox).Read(ModuleId{1}, 0, values.data(), 2).ok());
  EXPECT_THAT(values, Each(3)) << "a sum that is not rounded yet";
  values.assign(values.size(), 5);
  ASSERT_TRUE((*inbox).Replace(ModuleId{1}, 0, values.data(), DType::kFloat32, 2).ok());
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) ASSERT_TRUE(inbox.Add(unit, tensor, 1).ok());
  }
  EXPECT_TRUE(inbox.complete().empty());
  ASSERT_TRUE((*inbox).Read(ModuleId{1}, 0, values.data(), 2).ok());
  EXPECT_THAT(values, Each(6));
  values.assign(values.size(), 0.5F);
  ASSERT_TRUE((*inbox).Replace(ModuleId{2}, 0, values.data(), DType::kFloat32, 2).ok());
  ASSERT_TRUE((*inbox).CompleteAll(2).ok());
  EXPECT_THAT(inbox.complete(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(inbox.First(0), 4);
  EXPECT_EQ(inbox.First(1), 6);
  EXPECT_EQ(inbox.First(2), 0.5F);
  EXPECT_FALSE((*inbox).Replace(ModuleId{2}, 0, values.data(), DType::kFloat32, 2).ok());
}

TEST(GradientInboxTest, TensorsWithoutAGradientAreNamed) {
  Inbox inbox(1);
  for (uint32_t unit = 0; unit < kUnits; ++unit) ASSERT_TRUE(inbox.Add(unit, 0, 3).ok());
  const Status status = (*inbox).CompleteAll(2);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message,
              HasSubstr("4 of the trained tensors got no gradient in this step: u0.b, u1.b"));
}

TEST(GradientInboxTest, ASecondStepBeginsWithNothing) {
  Inbox inbox(2);
  ASSERT_TRUE(inbox.Add(0, 0, 7).ok());
  (*inbox).Clear();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(inbox.Add(0, 0, 1).ok());
    ASSERT_TRUE(inbox.Add(0, 1, 1).ok());
  }
  EXPECT_EQ(inbox.First(0), 2);
}

}  // namespace
}  // namespace penstock::front
