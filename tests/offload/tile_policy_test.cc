#include "offload/tile_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/offload/policy_world.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

TilePolicyOptions AllOnTheDrive(const ShardLayout& layout, size_t weight_blocks,
                                size_t record_blocks) {
  return {
      .homes = std::vector<TileHome>(layout.tiles.size()),
      .weight_blocks = weight_blocks,
      .record_blocks = record_blocks,
      .ahead_limit = weight_blocks - std::min<size_t>(weight_blocks / 2, layout.most_tiles() + 1)};
}

/// A model, homes and numbers of blocks that nobody would choose. Returns who waited in it.
PolicyWaiters RunRandomWorld(uint64_t seed, bool any_order = false) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t end) { return random() % end; };
  std::vector<uint32_t> tiles(1 + below(5));
  for (uint32_t& count : tiles) count = static_cast<uint32_t>(1 + below(4));
  const ShardLayout layout = LayoutOf(tiles);
  std::set<size_t> kept;
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (below(3) == 0) kept.insert(i);
  }
  const Begins begins = below(2) == 0 ? Begins::kAtStepEnd : Begins::kWithGradients;
  TilePolicyOptions options =
      AllOnTheDrive(layout, 2 + below(layout.tiles.size() + 2), 1 + below(layout.tiles.size() + 1));
  const uint64_t placement = below(4);
  for (TileHome& home : options.homes) {
    home.weight_on_drive = placement != 1 && (placement != 3 || below(2) == 0);
    home.record_on_drive = placement != 2 && (placement != 3 || home.weight_on_drive);
  }
  if (begins == Begins::kAtStepEnd) options.passes = 1 + below(2);
  const Schedule schedule = ForthAndBack(layout, kept, begins);
  PolicyWorld world(layout, schedule, options, begins, seed);
  if (below(2) == 0) {
    world.Fill();
  } else {
    world.Adopt(below(3));
  }
  if (any_order) world.UseInAnyOrder();
  world.Run(4);
  return world.waiters();
}

/// PENSTOCK_POLICY_WORLDS asks for a longer search.
uint64_t WorldsToTry() {
  const char* asked = std::getenv("PENSTOCK_POLICY_WORLDS");  // NOLINT(concurrency-mt-unsafe)
  return asked == nullptr ? SearchShare(5000) : std::strtoull(asked, nullptr, 10);
}

TEST(TilePolicyTest, NoOrderOfEventsMakesAThreadWaitForeverOrBreaksAPromise) {
  for (uint64_t seed = 0; seed < WorldsToTry(); ++seed) {
    RunRandomWorld(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(TilePolicyTest, NoOrderOfModulesMakesAThreadWaitForeverOrBreaksAPromise) {
  for (uint64_t seed = 0; seed < WorldsToTry(); ++seed) {
    RunRandomWorld(seed, true);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(TilePolicyTest, AWaiterIsWokenOnceAndOnlyIfItCanContinue) {
  PolicyWaiters sum;
  for (uint64_t seed = 0; seed < SearchShare(2000); ++seed) {
    for (const bool any_order : {false, true}) {
      const PolicyWaiters found = RunRandomWorld(seed, any_order);
      for (const auto waiter :
           {&PolicyWaiters::device, &PolicyWaiters::filler, &PolicyWaiters::settling}) {
        ASSERT_EQ((found.*waiter).wakes, (found.*waiter).waits) << "seed " << seed;
        (sum.*waiter).waits += (found.*waiter).waits;
      }
      ASSERT_EQ(found.updates_announced, found.updates_taken) << "seed " << seed;
      sum.updates_taken += found.updates_taken;
    }
  }
  for (const uint64_t waits :
       {sum.device.waits, sum.filler.waits, sum.settling.waits, sum.updates_taken}) {
    EXPECT_GT(waits, 0U);
  }
}

TEST(TilePolicyTest, NothingGivesWayThatIsNeededSoonerThanSomethingElseThatCould) {
  for (uint64_t seed = 0; seed < SearchShare(2000); ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> tiles(1 + random() % 5);
    for (uint32_t& count : tiles) count = static_cast<uint32_t>(1 + random() % 3);
    const ShardLayout layout = LayoutOf(tiles);
    const Schedule schedule = ForthAndBack(layout, {random() % tiles.size()}, Begins::kNever);
    // Without blocks for records no update is loaded: the device has all blocks for weights.
    const TilePolicyOptions options = AllOnTheDrive(layout, 2 + random() % layout.tiles.size(), 0);
    PolicyWorld world(layout, schedule, options, Begins::kNever, seed);
    world.Run(4);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

/// Searches through all choices of what is evicted. As the policy does, it reads what a step needs
/// next as soon as some copy is needed later, which then gives way; but any such copy may.
class FewestReads {
 public:
  /// The weights that a step needs, one after the other. All steps are alike.
  FewestReads(std::vector<TileId> step, uint64_t steps, size_t blocks)
      : step_(std::move(step)), end_(steps * step_.size()), blocks_(blocks) {}

  /// Returns the fewest reads from a need on, if the blocks have these tiles, a bit each.
  uint64_t From(uint64_t need, uint32_t there) {
    if (need == end_) return 0;
    const auto [found, is_new] = known_.try_emplace({need, there}, 0);
    if (is_new) found->second = Search(need, there);
    return found->second;
  }

 private:
  static uint32_t Bit(TileId tile) { return uint32_t{1} << Index(tile); }
  uint32_t Needed(uint64_t need) const { return Bit(step_[need % step_.size()]); }
  uint64_t NextNeed(uint64_t from, uint32_t tile) const {
    while (Needed(from) != tile) ++from;
    return from;
  }

  uint64_t Search(uint64_t need, uint32_t there) {
    const uint64_t step_end = (need / step_.size() + 1) * step_.size();
    uint64_t missing = need;
    while (missing < step_end && (there & Needed(missing)) != 0) ++missing;
    if (missing == step_end) return From(need + 1, there);
    const uint32_t read = there | Needed(missing);
    if (static_cast<size_t>(std::popcount(there)) < blocks_) return 1 + From(need, read);
    std::optional<uint64_t> fewest;
    for (uint32_t left = there; left != 0; left &= left - 1) {
      const uint32_t victim = left & (~left + 1);
      if (NextNeed(need, victim) < missing) continue;
      const uint64_t reads = 1 + From(need, read ^ victim);
      fewest = std::min(fewest.value_or(reads), reads);
    }
    return fewest ? *fewest : From(need + 1, there);
  }

  const std::vector<TileId> step_;
  const uint64_t end_;
  const size_t blocks_;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> known_;
};

TEST(TilePolicyTest, NoOtherChoiceOfWhatIsEvictedReadsFewerWeights) {
  constexpr uint64_t kSteps = 3;
  uint64_t evicting = 0;
  for (uint64_t seed = 0; seed < SearchShare(3000); ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> tiles(1 + random() % 4);
    for (uint32_t& count : tiles) count = static_cast<uint32_t>(1 + random() % 3);
    const ShardLayout layout = LayoutOf(tiles);
    const Schedule schedule = random() % 2 == 0
                                  ? ForthAndBack(layout, {random() % tiles.size()}, Begins::kNever)
                                  : AnyOrder(layout, Begins::kNever, random);
    std::vector<TileId> step;
    for (const ScheduledUse& use : schedule.uses) {
      if (!use.fetch) continue;
      for (const TileId tile : layout.TilesOf(use.module)) step.push_back(tile);
    }
    const size_t blocks = 2 + random() % layout.tiles.size();
    PolicyWorld world(layout, schedule, AllOnTheDrive(layout, blocks, 0), Begins::kNever, seed);
    world.TakeNoTime();
    world.Run(kSteps);
    ASSERT_EQ(world.weight_reads(), FewestReads(step, kSteps, blocks).From(0, 0))
        << "seed " << seed;
    evicting += world.weight_reads() > layout.tiles.size() ? 1 : 0;
  }
  EXPECT_GT(evicting, SearchShare(1000));
}

TEST(TilePolicyTest, WithABlockForEachTileAWeightIsReadOnceAndARecordOnceAStep) {
  const ShardLayout layout = LayoutOf({2, 3, 1});
  const size_t tiles = layout.tiles.size();
  for (const Begins begins : {Begins::kAtStepEnd, Begins::kWithGradients}) {
    const Schedule schedule = ForthAndBack(layout, {}, begins);
    PolicyWorld world(layout, schedule, AllOnTheDrive(layout, 2 * tiles, tiles), begins, 1);
    world.Run(5);
    EXPECT_EQ(world.weight_reads(), tiles);
    // None for a step that does not come.
    EXPECT_EQ(world.record_reads(), 5 * tiles);
  }
}

TEST(TilePolicyTest, AFirstPassLeavesTheSecondAllThatHasRoomAndReadsTheRestAgain) {
  const ShardLayout layout = LayoutOf({2, 3, 1});
  const size_t tiles = layout.tiles.size();
  const Schedule schedule = ForthAndBack(layout, {}, Begins::kAtStepEnd);
  const auto reads_with = [&](size_t record_blocks) {
    TilePolicyOptions options = AllOnTheDrive(layout, 2 * tiles, record_blocks);
    options.passes = 2;
    PolicyWorld world(layout, schedule, options, Begins::kAtStepEnd, 1);
    world.Run(5);
    return world.record_reads();
  };
  // In five steps, of which some may have no update.
  EXPECT_LE(reads_with(tiles), 5 * tiles);
  EXPECT_LE(reads_with(3), 5 * (2 * tiles - 1));
  EXPECT_LE(reads_with(1), 5 * (2 * tiles - 1)) << "the last one is there";
  EXPECT_GT(reads_with(1), reads_with(3));
}

class DrivenPolicy : public ::testing::Test {
 protected:
  /// Tiles 0, 1 and 2, each a module of its own, used in this order and back.
  DrivenPolicy()
      : layout_(LayoutOf({1, 1, 1})), schedule_(ForthAndBack(layout_, {}, Begins::kAtStepEnd)) {}

  /// Tiles 2, 1 and 0, each once.
  Schedule Backwards() const {
    std::vector<ScheduledUse> uses;
    for (const uint32_t module : {2, 1, 0}) {
      uses.push_back({.module = ModuleId{module}, .fetch = true});
    }
    return ScheduleOf(layout_, uses, Begins::kAtStepEnd);
  }

  /// At time 0, with so many blocks for weights and none for records.
  TilePolicy Started(size_t weight_blocks) const {
    TilePolicy policy(layout_, schedule_, AllOnTheDrive(layout_, weight_blocks, 0));
    policy.SetTime(0);
    return policy;
  }
  static void CompleteReads(TilePolicy& policy) {
    for (const uint32_t tile : ReadsOf(policy)) policy.WeightRead(TileId{tile});
  }

  static std::vector<uint32_t> ReadsOf(TilePolicy& policy) {
    std::vector<uint32_t> reads;
    for (const TileAction& action : policy.TakeActions()) {
      if (action.kind == TileAction::Kind::kReadWeight) reads.push_back(Index(action.tile));
    }
    return reads;
  }

  const ShardLayout layout_;
  const Schedule schedule_;
};

TEST_F(DrivenPolicy, ReadsAheadInTheOrderOfUseAsFarAsBlocksGo) {
  TilePolicy policy = Started(2);
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(0, 1));
  EXPECT_FALSE(policy.CanPin(TileId{0}));
  policy.WeightRead(TileId{0});
  EXPECT_TRUE(policy.CanPin(TileId{0}));
}

TEST_F(DrivenPolicy, WhatAUseDidNotPinIsWantedForTheNextOne) {
  TilePolicy policy = Started(2);
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(0, 1));
  for (uint32_t tile : {0, 1}) policy.WeightRead(TileId{tile});
  // The step goes on at tile 2 without having used 0 and 1: 0 is needed last, and gives way.
  policy.SetTime(2);
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(2));
  EXPECT_FALSE(policy.CanPin(TileId{0}));
  EXPECT_TRUE(policy.CanPin(TileId{1}));
}

TEST_F(DrivenPolicy, AUseOutOfOrderIsServedAndNothingThatIsPinnedGivesWay) {
  TilePolicy policy = Started(2);
  CompleteReads(policy);
  ASSERT_TRUE(policy.TryPin(TileId{0}));
  // Tile 2 at time 0, where tile 0 was planned.
  EXPECT_FALSE(policy.TryPin(TileId{2}));
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(2));
  EXPECT_FALSE(policy.CanPin(TileId{1})) << "its block was the only one that was free to go";
  policy.WeightRead(TileId{2});
  EXPECT_TRUE(policy.TryPin(TileId{2}));
}

TEST_F(DrivenPolicy, ALatePinOfATileTakesABlockFromWhatIsNeededFirst) {
  TilePolicy policy = Started(2);
  CompleteReads(policy);
  // Both blocks have what comes next, 0 and 1. Neither is pinned: 1 gives way.
  EXPECT_FALSE(policy.TryPin(TileId{2}));
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(2));
  EXPECT_TRUE(policy.CanPin(TileId{0}));
}

TEST_F(DrivenPolicy, WhereTheDeviceWaitsForAnUpdateARecordReadAheadGivesWay) {
  const Schedule schedule = ForthAndBack(layout_, {}, Begins::kWithGradients);
  TilePolicy policy(layout_, schedule, AllOnTheDrive(layout_, 3, 1));
  policy.SetTime(0);
  // The one block for records has that of tile 2, whose update begins first by the schedule.
  for (const TileAction& action : std::vector(policy.TakeActions())) {
    if (action.kind == TileAction::Kind::kReadRecord) {
      EXPECT_EQ(action.tile, TileId{2});
      policy.RecordRead(action.tile);
    } else {
      policy.WeightRead(action.tile);
    }
  }
  // But the step has gradients of tile 0 first, and uses it once more.
  policy.Begin(TileId{0});
  EXPECT_FALSE(policy.TryPin(TileId{0}));
  std::vector<std::pair<TileAction::Kind, uint32_t>> records;
  for (const TileAction& action : policy.TakeActions()) {
    if (action.kind == TileAction::Kind::kEvictRecord ||
        action.kind == TileAction::Kind::kReadRecord) {
      records.emplace_back(action.kind, Index(action.tile));
    }
  }
  EXPECT_THAT(records, ::testing::ElementsAre(std::pair(TileAction::Kind::kEvictRecord, 2),
                                              std::pair(TileAction::Kind::kReadRecord, 0)));
  policy.RecordRead(TileId{0});
  EXPECT_EQ(policy.TakeUpdate(), TileId{0});
  policy.FinishUpdate(TileId{0});
  EXPECT_TRUE(policy.TryPin(TileId{0}));
}

TEST_F(DrivenPolicy, AnotherScheduleIsReadAheadFromItsStart) {
  TilePolicy policy = Started(2);
  CompleteReads(policy);
  policy.SetTime(schedule_.length());
  policy.TakeActions();
  const Schedule backwards = Backwards();
  policy.SetSchedule(backwards);
  // 1 stays, and 0, which is needed last now, gives way.
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(2));
  EXPECT_FALSE(policy.CanPin(TileId{0}));
  EXPECT_TRUE(policy.CanPin(TileId{1}));
}

TEST_F(DrivenPolicy, UpdatesThatAreLoadedAreGivenOutInTheOrderOfAnotherSchedule) {
  TilePolicy policy(layout_, schedule_, AllOnTheDrive(layout_, 6, 3));
  policy.SetTime(0);
  for (const TileId tile : layout_.Tiles()) policy.Begin(tile);
  for (const TileAction& action : std::vector(policy.TakeActions())) {
    const bool record = action.kind == TileAction::Kind::kReadRecord;
    record ? policy.RecordRead(action.tile) : policy.WeightRead(action.tile);
  }
  const Schedule backwards = Backwards();
  policy.SetSchedule(backwards);
  for (const uint32_t tile : {2, 1, 0}) EXPECT_EQ(policy.TakeUpdate(), TileId{tile});
}

TEST_F(DrivenPolicy, InAnotherScheduleTheLastStepIsStillTheLast) {
  TilePolicy policy = Started(2);
  policy.EndAfterThisStep();
  CompleteReads(policy);
  const Schedule backwards = Backwards();
  policy.SetSchedule(backwards);
  EXPECT_THAT(ReadsOf(policy), ::testing::ElementsAre(2));
  policy.SetTime(backwards.length());
  EXPECT_THAT(ReadsOf(policy), ::testing::IsEmpty());
}

}  // namespace
}  // namespace penstock::offload
