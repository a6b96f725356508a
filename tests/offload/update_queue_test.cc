#include "offload/update_queue.h"

#include <gmock/gmock.h>

#include <vector>

namespace penstock::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TileId Tile(uint32_t index) { return TileId{index}; }

/// Three tiles, needed in the order 0, 1, 2, whose updates begin in the order 2, 1, 0.
class UpdateQueueTest : public ::testing::Test {
 protected:
  UpdateQueueTest()
      : schedule_{.update_order = {Tile(0), Tile(1), Tile(2)},
                  .load_order = {Tile(2), Tile(1), Tile(0)}},
        queue_(schedule_, 3) {}

  /// What is loaded, in order, with room for `room` tiles; the states arrive at once.
  std::vector<uint32_t> Load(size_t room) {
    std::vector<uint32_t> loaded;
    while (loaded.size() < room) {
      const auto next = queue_.NextToLoad();
      if (!next) break;
      queue_.Loaded(next->tile);
      queue_.SetReady(next->tile, true);
      loaded.push_back(Index(next->tile));
    }
    return loaded;
  }
  std::vector<uint32_t> TakeAll() {
    std::vector<uint32_t> taken;
    while (const auto tile = queue_.Take()) taken.push_back(Index(*tile));
    return taken;
  }

  const Schedule schedule_;
  const Schedule reversed_{.update_order = {Tile(2), Tile(1), Tile(0)},
                           .load_order = {Tile(0), Tile(1), Tile(2)}};
  UpdateQueue queue_;
};

TEST_F(UpdateQueueTest, LoadsAheadInTheOrderInWhichUpdatesBeginAndTakesNothingBefore) {
  EXPECT_THAT(Load(3), ElementsAre(2, 1, 0));
  EXPECT_THAT(TakeAll(), IsEmpty());
}

TEST_F(UpdateQueueTest, OfThoseBegunTheOneNeededSoonestIsLoadedAndTakenFirst) {
  queue_.Begin(Tile(2));
  queue_.Begin(Tile(1));
  EXPECT_THAT(Load(2), ElementsAre(1, 2));
  EXPECT_THAT(TakeAll(), ElementsAre(1, 2));
}

TEST_F(UpdateQueueTest, NothingIsLoadedAheadWhileATileThatIsBegunWaits) {
  queue_.Begin(Tile(1));
  EXPECT_THAT(Load(0), IsEmpty());
  const auto next = queue_.NextToLoad();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->tile, Tile(1));
  EXPECT_FALSE(next->ahead);
}

TEST_F(UpdateQueueTest, WhatWasLoadedAheadIsNotLoadedAgainWhenItBegins) {
  EXPECT_THAT(Load(1), ElementsAre(2));
  queue_.Begin(Tile(2));
  EXPECT_THAT(TakeAll(), ElementsAre(2));
  EXPECT_THAT(Load(3), ElementsAre(1, 0));
}

TEST_F(UpdateQueueTest, NothingIsLoadedAheadForAnUpdateThatNeverComes) {
  queue_.EndAfterThisRound();
  EXPECT_THAT(Load(3), ElementsAre(2, 1, 0));
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  for (const uint32_t tile : TakeAll()) queue_.Finish(Tile(tile));
  EXPECT_THAT(Load(3), IsEmpty());
}

class TwoPassQueueTest : public UpdateQueueTest {
 protected:
  UpdateQueue queue_two_{schedule_, 3, /*passes=*/2};
};

TEST_F(TwoPassQueueTest, AnUpdateIsTakenTwiceAndIsOneVersion) {
  const auto load_all = [this] {
    while (const auto next = queue_two_.NextToLoad()) {
      queue_two_.Loaded(next->tile);
      queue_two_.SetReady(next->tile, true);
    }
  };
  queue_two_.Reset(4);
  load_all();
  for (uint32_t tile = 0; tile < 3; ++tile) queue_two_.Begin(Tile(tile));
  EXPECT_EQ(queue_two_.round(), 4);
  EXPECT_EQ(queue_two_.target(Tile(0)), 5);
  EXPECT_TRUE(queue_two_.in_first_pass(Tile(0)));
  while (const auto tile = queue_two_.Take()) queue_two_.FinishFirstPass(*tile);
  EXPECT_EQ(queue_two_.unfinished(), 0);
  EXPECT_EQ(queue_two_.version(Tile(0)), 4);
  EXPECT_EQ(queue_two_.target(Tile(0)), 5) << "its second pass is still to come";
  // What stayed loaded is ahead of its second pass, and can be given up.
  EXPECT_TRUE(queue_two_.loaded_ahead(Tile(0)));
  queue_two_.Unload(Tile(0));
  EXPECT_FALSE(queue_two_.Take().has_value());
  for (uint32_t tile = 0; tile < 3; ++tile) queue_two_.Begin(Tile(tile));
  EXPECT_FALSE(queue_two_.in_first_pass(Tile(1)));
  EXPECT_TRUE(queue_two_.waiting());
  load_all();
  EXPECT_FALSE(queue_two_.waiting());
  while (const auto tile = queue_two_.Take()) queue_two_.Finish(*tile);
  EXPECT_EQ(queue_two_.round(), 5);
  EXPECT_EQ(queue_two_.version(Tile(0)), 5);
  EXPECT_EQ(queue_two_.target(Tile(0)), 5);
}

TEST_F(TwoPassQueueTest, TheLastUpdateHasBothPassesReadAheadAndNothingAfterIt) {
  queue_two_.EndAfterThisRound();
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<uint32_t> loaded;
    while (const auto next = queue_two_.NextToLoad()) {
      EXPECT_TRUE(next->ahead);
      queue_two_.Loaded(next->tile);
      queue_two_.SetReady(next->tile, true);
      loaded.push_back(Index(next->tile));
    }
    EXPECT_THAT(loaded, ElementsAre(2, 1, 0));
    for (uint32_t tile = 0; tile < 3; ++tile) queue_two_.Begin(Tile(tile));
    while (const auto tile = queue_two_.Take()) {
      if (pass == 1) {
        queue_two_.Finish(*tile);
      } else {
        queue_two_.FinishFirstPass(*tile);
        queue_two_.Unload(*tile);
      }
    }
  }
  EXPECT_FALSE(queue_two_.NextToLoad().has_value());
}

TEST_F(UpdateQueueTest, ATileIsLoadedForItsNextUpdateOnlyAfterTheOneBefore) {
  EXPECT_THAT(Load(3), ElementsAre(2, 1, 0));
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_EQ(queue_.round(), 1);
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1, 2));
  EXPECT_THAT(Load(3), IsEmpty());
  EXPECT_EQ(queue_.version(Tile(2)), 0);
  EXPECT_EQ(queue_.target(Tile(2)), 1);
  queue_.Finish(Tile(2));
  EXPECT_EQ(queue_.version(Tile(2)), 1);
  EXPECT_EQ(queue_.unfinished(), 2);
  EXPECT_THAT(Load(3), ElementsAre(2));
}

TEST_F(UpdateQueueTest, WhatIsNotReadyDoesNotHoldUpWhatIs) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(3), ElementsAre(0, 1, 2));
  queue_.SetReady(Tile(0), false);
  EXPECT_EQ(queue_.Take(), Tile(1));
  queue_.SetReady(Tile(0), true);
  EXPECT_EQ(queue_.Take(), Tile(0));
}

TEST_F(UpdateQueueTest, ATileThatIsHeldBackDoesNotHoldUpTheOthersAndKeepsItsPlace) {
  queue_.HoldBack(Tile(0));
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(1), ElementsAre(1));
  queue_.LetGo(Tile(0));
  EXPECT_THAT(Load(3), ElementsAre(0, 2));
}

TEST_F(UpdateQueueTest, NothingIsLoadedAheadWhileATileThatIsBegunIsHeldBack) {
  queue_.HoldBack(Tile(1));
  queue_.Begin(Tile(1));
  EXPECT_THAT(Load(3), IsEmpty());
  queue_.LetGo(Tile(1));
  EXPECT_THAT(Load(3), ElementsAre(1, 2, 0));
}

TEST_F(UpdateQueueTest, ATileThatWasTakenIsNotGivenAgainForAnyStates) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(1), ElementsAre(0));
  EXPECT_EQ(queue_.Take(), Tile(0));
  queue_.SetReady(Tile(0), false);
  queue_.SetReady(Tile(0), true);
  EXPECT_EQ(queue_.Take(), std::nullopt);
  EXPECT_EQ(queue_.takeable(), 0);
}

TEST_F(UpdateQueueTest, ATileThatIsGivenBackIsTakenAgainInItsPlaceAndNotLoadedAgain) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1, 2));
  queue_.GiveBack(Tile(2));
  queue_.GiveBack(Tile(1));
  EXPECT_EQ(queue_.takeable(), 2);
  EXPECT_EQ(queue_.unfinished(), 3);
  EXPECT_THAT(Load(3), IsEmpty());
  EXPECT_THAT(TakeAll(), ElementsAre(1, 2));
  for (const uint32_t tile : {0, 1, 2}) queue_.Finish(Tile(tile));
  EXPECT_EQ(queue_.unfinished(), 0);
}

TEST_F(UpdateQueueTest, ATileThatBeganBeforeItsTurnIsPassedOverAhead) {
  queue_.Begin(Tile(1));
  EXPECT_THAT(Load(1), ElementsAre(1));
  EXPECT_THAT(Load(3), ElementsAre(2, 0));
}

TEST_F(UpdateQueueTest, ContinuesFromAnyVersion) {
  queue_.Reset(7);
  EXPECT_THAT(Load(3), ElementsAre(2, 1, 0));
  queue_.Begin(Tile(0));
  EXPECT_EQ(queue_.target(Tile(0)), 8);
  EXPECT_EQ(queue_.round(), 7);
}

TEST_F(UpdateQueueTest, AnotherScheduleRanksWhatIsUnderWayAnewAndLosesNothing) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(1), ElementsAre(0));
  EXPECT_EQ(queue_.Take(), Tile(0));
  queue_.HoldBack(Tile(1));
  queue_.SetSchedule(reversed_);
  EXPECT_EQ(queue_.unfinished(), 3);
  EXPECT_THAT(Load(3), ElementsAre(2)) << "1 is held back, and nothing is loaded ahead before it";
  EXPECT_EQ(queue_.takeable(), 1) << "0 was taken before";
  queue_.LetGo(Tile(1));
  EXPECT_THAT(Load(1), ElementsAre(1));
  EXPECT_THAT(TakeAll(), ElementsAre(2, 1));
  for (const uint32_t tile : {0, 1, 2}) queue_.Finish(Tile(tile));
  EXPECT_THAT(Load(3), ElementsAre(0, 1, 2)) << "ahead, in the new order";
}

TEST_F(UpdateQueueTest, WhatIsTakeableGoesByTheNewOrder) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  EXPECT_THAT(Load(3), ElementsAre(0, 1, 2));
  queue_.SetSchedule(reversed_);
  EXPECT_THAT(TakeAll(), ElementsAre(2, 1, 0));
}

TEST_F(UpdateQueueTest, WhatWasLoadedAheadIsNotLoadedAgainInAnotherSchedule) {
  EXPECT_THAT(Load(1), ElementsAre(2));
  queue_.SetSchedule(reversed_);
  EXPECT_THAT(Load(3), ElementsAre(0, 1));
}

TEST_F(UpdateQueueTest, WhatIsUrgentIsLoadedBeforeWhatIsNeededSooner) {
  for (uint32_t tile = 0; tile < 3; ++tile) queue_.Begin(Tile(tile));
  const auto next = queue_.NextToLoad(Tile(2));
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->tile, Tile(2));
  EXPECT_FALSE(next->ahead);
  // Not where it is loaded already, or held back.
  queue_.Loaded(Tile(2));
  EXPECT_EQ(queue_.NextToLoad(Tile(2))->tile, Tile(0));
  queue_.HoldBack(Tile(1));
  EXPECT_EQ(queue_.NextToLoad(Tile(1))->tile, Tile(0));
}

TEST_F(UpdateQueueTest, WhatWasLoadedAheadAndGivenUpIsLoadedAgainInItsPlace) {
  EXPECT_THAT(Load(2), ElementsAre(2, 1));
  queue_.Unload(Tile(2));
  EXPECT_FALSE(queue_.loaded_ahead(Tile(2)));
  EXPECT_TRUE(queue_.loaded_ahead(Tile(1)));
  EXPECT_THAT(Load(3), ElementsAre(2, 0));
}

TEST_F(UpdateQueueTest, ATileThatIsNeverUpdatedTakesNoPlace) {
  UpdateQueue queue(schedule_, 4);
  queue.Begin(Tile(0));
  queue.HoldBack(Tile(3));
  queue.LetGo(Tile(3));
  queue.SetReady(Tile(3), true);
  EXPECT_EQ(queue.NextToLoad(Tile(3))->tile, Tile(0));
}

}  // namespace
}  // namespace penstock::offload
