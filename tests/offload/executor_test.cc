// The executor in the order of the schedule, and in any other.
#include "offload/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/offload/executor_support.h"

namespace penstock::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ExecutorTest, InTheOrderOfTheScheduleWeightsAreCopiedWhereItSays) {
  for (int step = 0; step < 3; ++step) {
    ExpectCopiesAsPlanned(schedule_);
    BeginUpdates();
  }
  EXPECT_EQ(executor_->late_uses(), 0);
  EXPECT_EQ(executor_->evictions(), 3 * 2) << "of layers 0 and 1, which each step uses again";
}

TEST_F(ExecutorTest, ALateUseOfWhatASlotStillHoldsCopiesNothingAndTheClockStays) {
  for (const ModuleId module : {kE, Layer(0), Layer(1)}) EXPECT_TRUE(UseIsCopied(module));
  for (const ModuleId module : {Layer(0), kE, Layer(1)}) EXPECT_FALSE(UseIsCopied(module));
  EXPECT_EQ(executor_->late_uses(), 3);
  for (const ModuleId module : {Layer(2), Layer(3)}) EXPECT_TRUE(UseIsCopied(module));
  for (const ModuleId module : {kE, Layer(3), Layer(2)}) EXPECT_FALSE(UseIsCopied(module));
  EXPECT_EQ(executor_->late_uses(), 3);
}

TEST_F(ExecutorTest, ALateUseTakesTheSlotThatIsNeededLastAndWhatWasThereIsCopiedAgain) {
  for (const ModuleId module : {kE, Layer(0), Layer(1), Layer(2), Layer(3), kE}) Use(module);
  const uint64_t evictions = executor_->evictions();
  EXPECT_TRUE(UseIsCopied(Layer(0))) << "late: layer 3 is needed next, layer 2 behind it";
  EXPECT_EQ(executor_->evictions(), evictions + 1);
  EXPECT_EQ(executor_->late_uses(), 1);
  Use(Layer(3));
  EXPECT_EQ(executor_->late_uses(), 1);
  EXPECT_TRUE(UseIsCopied(Layer(2))) << "the plan has it in its slot";
  EXPECT_EQ(executor_->late_uses(), 2);
  Use(Layer(1));
  Use(Layer(0));
  EXPECT_EQ(executor_->late_uses(), 2);
}

TEST_F(ExecutorTest, ModulesUsedInAnyOrderHaveTheWeightsOfTheirStep) {
  std::mt19937_64 random(1);
  for (int step = 0; step < 12; ++step) {
    for (const StepUse& use : StepInAnyOrder(schedule_, random)) Use(use.module);
    executor_->EndStep();
    if (random() % 4 > 0) BeginUpdates();
  }
  EXPECT_GT(executor_->late_uses(), 0);
}

TEST_F(ExecutorTest, TheNextModuleIsFetchedAheadOnceAndItsUseFetchesNothingMore) {
  for (const ModuleId module : {kE, Layer(0), Layer(1), Layer(2), Layer(3), kE, Layer(3)}) {
    Use(module);
  }
  for (const uint32_t layer : {2, 1}) {
    gatherer_.modules.clear();
    Compute(Layer(layer), Acquire(Layer(layer)));
    for (int times = 0; times < 2; ++times) ASSERT_TRUE(executor_->FetchAhead().ok());
    EXPECT_THAT(gatherer_.modules, ElementsAre(Layer(layer - 1)));
    executor_->Release(Layer(layer));
  }
  gatherer_.modules.clear();
  Use(Layer(0));
  EXPECT_THAT(gatherer_.modules, IsEmpty());
  EXPECT_TRUE(executor_->FetchAhead().ok()) << "the step has no more uses";
  EXPECT_EQ(executor_->late_uses(), 0);
}

TEST_F(ExecutorTest, NothingIsFetchedAheadIntoASlotThatIsHeldOrThatTheUseBeforeHas) {
  for (const ModuleId module : {kE, Layer(0), Layer(1), Layer(2), Layer(3), kE}) Use(module);
  gatherer_.modules.clear();
  Acquire(Layer(3));
  Acquire(Layer(2));
  ASSERT_TRUE(executor_->FetchAhead().ok()) << "layer 1 is planned where layer 3 is held";
  EXPECT_THAT(gatherer_.modules, IsEmpty());
  executor_->Release(Layer(2));
  executor_->Release(Layer(3));
  const Schedule one_slot = Planned({{kE, 0, true},
                                     {Layer(0), 1, true},
                                     {Layer(1), 1, true},
                                     {Layer(2), 1, true},
                                     {Layer(3), 1, true}});
  executor_->EndStep();
  Follow(one_slot);
  Use(kE);
  for (const uint32_t layer : {0, 1, 2, 3}) {
    gatherer_.modules.clear();
    Use(Layer(layer));
    ASSERT_TRUE(executor_->FetchAhead().ok());
    EXPECT_THAT(gatherer_.modules, ElementsAre(Layer(layer)));
  }
  WaitUntilIdle();
}

TEST_F(ExecutorTest, WhatWasFetchedAheadAndNotUsedChangesNoWeights) {
  std::mt19937_64 random(2);
  for (int step = 0; step < 12; ++step) {
    for (const StepUse& use : StepInAnyOrder(schedule_, random)) {
      Compute(use.module, Acquire(use.module));
      if (random() % 2 == 0) {
        ASSERT_TRUE(executor_->FetchAhead().ok());
      }
      executor_->Release(use.module);
    }
    executor_->EndStep();
    if (random() % 4 > 0) BeginUpdates();
  }
}

TEST_F(ExecutorTest, WhereAllSlotsAreHeldTheErrorNamesTheModuleAndAReleaseHelps) {
  Acquire(kE);
  Acquire(Layer(0));
  Acquire(Layer(1));
  for (const uint32_t layer : {2, 3}) {  // planned, and not
    const auto refused = executor_->Acquire(Layer(layer));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("layer." + std::to_string(layer)));
    EXPECT_THAT(refused.error().message, HasSubstr("release one first"));
  }
  executor_->Release(Layer(1));
  // Planned for the slot that layer 0 still holds: it takes the other one.
  Compute(Layer(2), Acquire(Layer(2)));
  Compute(Layer(0), Acquire(Layer(0)));
  Compute(kE, Acquire(kE));
}

TEST_F(ExecutorTest, AModuleThatIsHeldHasOneAddressHoweverOftenItIsAcquired) {
  const std::byte* once = Acquire(Layer(0));
  EXPECT_EQ(Acquire(Layer(0)), once);
  executor_->Release(Layer(0));
  Use(Layer(1));
  Use(Layer(2));
  Use(Layer(3));
  EXPECT_EQ(Acquire(Layer(0)), once) << "it is still held once";
  Compute(Layer(0), once);
}

TEST_F(ExecutorTest, AModuleThatIsHeldAcrossStepsGetsTheirWeightsAtTheSameAddress) {
  const std::byte* weights = Acquire(Layer(1));
  Compute(Layer(1), weights);
  executor_->EndStep();
  BeginUpdates();
  EXPECT_EQ(Acquire(Layer(1)), weights);
  Compute(Layer(1), weights);
  executor_->Release(Layer(1));
  executor_->Release(Layer(1));
}

TEST_F(ExecutorTest, AStepThatWasDroppedLeavesTheNextOneAsPlanned) {
  for (size_t uses = 0; uses < schedule_.length(); ++uses) {
    for (size_t use = 0; use < uses; ++use) Use(schedule_.uses[use].module);
    executor_->EndStep();
    if (uses % 2 == 0) BeginUpdates();
    ExpectCopiesAsPlanned(schedule_);
    BeginUpdates();
  }
  EXPECT_EQ(executor_->late_uses(), 0);
}

TEST_F(ExecutorTest, AnotherScheduleIsFollowedWhileTheUpdatesOfTheLastStepRunOn) {
  for (int change = 0; change < 4; ++change) {
    for (const Schedule* schedule : {&schedule_, &other_schedule_}) {
      Follow(*schedule);
      ExpectCopiesAsPlanned(*schedule);
      ExpectCopiesAsPlanned(*schedule);
      BeginUpdates();
    }
  }
  EXPECT_EQ(executor_->late_uses(), 0);
  ASSERT_TRUE(store_->Drain().ok());
  EXPECT_EQ(store_->updates_finished(), 8 * layout_.tiles.size()) << "none is lost";
}

TEST_F(ExecutorTest, TheClockOfTheStoreIsThatOfTheUsesSoThatTheRightCopiesStay) {
  // What gives way is a matter of the schedule alone where everything is read in time. Of what a
  // step copies, the two tiles of one module can stay in the three blocks from the step before.
  for (const Schedule* schedule : {&schedule_, &other_schedule_, &schedule_}) {
    Follow(*schedule);
    const auto fetches = std::ranges::count_if(schedule->uses, &ScheduledUse::fetch);
    for (int step = 0; step < 5; ++step) {
      const uint64_t before = store_->evictions();
      for (const ScheduledUse& use : schedule->uses) {
        Use(use.module);
        WaitUntilIdle();
      }
      executor_->EndStep();
      WaitUntilIdle();
      EXPECT_EQ(store_->evictions() - before, 2 * (fetches - 1)) << "step " << step;
    }
  }
}

TEST_F(ExecutorTest, TheStoreReadsAheadInTheOrderOfAnotherScheduleAndNotBehindTheLastStep) {
  UseAll(schedule_);
  executor_->EndStep();
  WaitUntilIdle();
  uint64_t evictions = store_->evictions();
  Follow(other_schedule_);
  EXPECT_GT(store_->evictions(), evictions) << "what the other schedule begins with comes first";
  Use(Layer(3));
  executor_->EndStep();
  store_->EndAfterThisStep();
  UseAll(other_schedule_);
  WaitUntilIdle();
  evictions = store_->evictions();
  executor_->EndStep();
  EXPECT_EQ(store_->evictions(), evictions) << "nothing is read for a step that does not come";
}

}  // namespace
}  // namespace penstock::offload
