// The executor over the CPU device and a tile store on a file: in the order of the schedule, and in
// any other.
#include "offload/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "offload/slab.h"
#include "offload/state_file.h"
#include "offload/tile_store.h"
#include "tests/offload/policy_schedules.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::byte kScribbled{0xEE};

/// "e", which has a slot of its own, and four layers that share two slots.
constexpr ModuleId kE{0};
ModuleId Layer(uint32_t i) { return ModuleId{i + 1}; }

/// What several ranks have: it lists the modules that were fetched.
class ListingGatherer final : public ShareGatherer {
 public:
  device::Event Gather(ModuleId module, std::byte*, const device::Event& copied) override {
    modules.push_back(module);
    return copied;
  }
  std::vector<ModuleId> modules;
};

class ExecutorTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16))};
    for (const char* name : {"e", "layer.0", "layer.1", "layer.2", "layer.3"}) {
      model.modules.push_back(MakeModule(
          name, {{.name = std::string(name) + ".weight", .shape = {2 * kBlockElements}}}));
    }
    layout_ = MakeShard(std::move(model), kBlockElements);
    schedule_ = Planned({{kE, 0, true},
                         {Layer(0), 1, true},
                         {Layer(1), 2, true},
                         {Layer(2), 1, true},
                         {Layer(3), 2, true},
                         {kE, 0, false},
                         {Layer(3), 2, false},
                         {Layer(2), 1, false},
                         {Layer(1), 2, true},
                         {Layer(0), 1, true}});
    other_schedule_ = Planned({{Layer(3), 1, true},
                               {Layer(1), 2, true},
                               {kE, 0, true},
                               {Layer(1), 2, false},
                               {Layer(2), 2, true},
                               {Layer(0), 2, true},
                               {Layer(3), 1, false}});
    device_ = device::CreateCpuDevice({.memory = 4_MiB}).value();
    compute_ = device_->CreateStream("compute").value();
    io_ = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {io_.get()};
    file_ = StateFile::Create(layout_, {.folders = {folder_}, .require_direct = false}, engines)
                .value();
    slab_.emplace(Slab::Create(4_MiB).value());
    store_ = std::make_unique<TileStore>(layout_, schedule_,
                                         TileStoreOptions{.weight_blocks = 3, .record_blocks = 2},
                                         *slab_, *file_);
    executor_ =
        Executor::Create(layout_, schedule_, *device_, *compute_, *store_, {.gatherer = &gatherer_})
            .value();
    for (const TileId tile : layout_.Tiles()) {
      const auto fill = [&](std::span<std::byte> weight, std::span<std::byte>) {
        std::ranges::fill(weight, Contents(tile, 0));
        return Status();
      };
      ASSERT_TRUE(store_->FillTile(tile, fill).ok());
    }
    ASSERT_TRUE(store_->Drain().ok());
    store_->SetTime(0);
    optimizer_ = std::thread([this] { Update(); });
  }

  void TearDown() override {
    stop_ = true;
    optimizer_.join();
    EXPECT_TRUE(compute_->Synchronize().ok());
    executor_.reset();
    compute_.reset();
    EXPECT_EQ(wrong_bytes_, 0);
    store_.reset();
    file_.reset();
    FolderTest::TearDown();
  }

  Schedule Planned(const std::vector<ScheduledUse>& uses) const {
    Schedule schedule = ScheduleOf(layout_, uses, Begins::kAtStepEnd);
    schedule.slot_bytes.assign(3, layout_.SlotBytes(kE));
    schedule.own_slot.resize(layout_.model.modules.size());
    schedule.own_slot[0] = 0;
    return schedule;
  }

  /// What every byte of a tile's weight is.
  static std::byte Contents(TileId tile, uint64_t version) {
    return static_cast<std::byte>(1 + Index(tile) + 16 * version);
  }

  /// An optimizer thread.
  void Update() {
    while (!stop_) {
      auto update = store_->TryTakeUpdate();
      if (!update) {
        std::this_thread::yield();
        continue;
      }
      std::ranges::fill(update->weight, Contents(update->tile, update->version + 1));
      store_->FinishUpdate(*update,
                           ChecksumsOf(file_->uuid(), layout_, update->tile, update->version + 1,
                                       update->weight, update->record));
    }
  }

  /// All updates of a step begin; many of them run on under what follows.
  void BeginUpdates() {
    ASSERT_TRUE(executor_->Synchronize().ok());
    ASSERT_TRUE(store_->PrepareUpdates().ok());
    store_->BeginUpdates();
    ++version_;
  }

  const std::byte* Acquire(ModuleId module) {
    const auto weights = executor_->Acquire(module);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    return weights.ok() ? *weights : nullptr;
  }

  /// A kernel that looks at all weights of a module.
  void Compute(ModuleId module, const std::byte* weights) {
    auto* stream = dynamic_cast<device::CpuStream*>(compute_.get());
    stream->Launch([this, module, weights, version = version_] {
      for (const TileId tile : layout_.TilesOf(module)) {
        const auto [begin, size] = PlaceOf(tile);
        const std::span<const std::byte> bytes(weights + begin, size);
        wrong_bytes_ += size - std::ranges::count(bytes, Contents(tile, version));
      }
    });
  }

  void Use(ModuleId module) {
    const std::byte* weights = Acquire(module);
    if (weights != nullptr) Compute(module, weights);
    executor_->Release(module);
  }

  void UseAll(const Schedule& schedule) {
    for (const ScheduledUse& use : schedule.uses) Use(use.module);
  }

  /// Uses a module and scribbles over its slot: what is found there next time was copied in
  /// between, or was not.
  bool UseIsCopied(ModuleId module) {
    auto* weights = const_cast<std::byte*>(Acquire(module));
    EXPECT_TRUE(compute_->Synchronize().ok());
    const bool scribbled = weights[0] == kScribbled;
    if (!scribbled) {
      Compute(module, weights);
      EXPECT_TRUE(compute_->Synchronize().ok());
    }
    std::memset(weights, static_cast<int>(kScribbled), layout_.SlotBytes(module).value);
    executor_->Release(module);
    return !scribbled;
  }

  void Follow(const Schedule& schedule) {
    store_->SetSchedule(schedule);
    executor_->SetSchedule(schedule);
  }

  void ExpectCopiesAsPlanned(const Schedule& schedule) {
    for (const ScheduledUse& use : schedule.uses) {
      EXPECT_EQ(UseIsCopied(use.module), use.fetch) << layout_.module(use.module).name;
    }
    executor_->EndStep();
  }

  /// Nothing is copied or read any more.
  void WaitUntilIdle() {
    ASSERT_TRUE(compute_->Synchronize().ok());
    ASSERT_TRUE(executor_->Synchronize().ok());
    io_->Drain();
  }

  std::pair<uint64_t, uint64_t> PlaceOf(TileId tile) const {
    return {layout_.SlotOffset(layout_.tile(tile).module, layout_.tile(tile).begin).value,
            layout_.WeightBytes(tile).value};
  }

  ShardLayout layout_;
  Schedule schedule_;
  Schedule other_schedule_;
  std::unique_ptr<aio::Engine> io_;
  std::optional<Slab> slab_;
  std::unique_ptr<StateFile> file_;
  std::unique_ptr<TileStore> store_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> compute_;
  ListingGatherer gatherer_;
  std::unique_ptr<Executor> executor_;
  std::thread optimizer_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> wrong_bytes_ = 0;
  uint64_t version_ = 0;
};

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

TEST_F(ExecutorTest, InWhateverOrderModulesAreUsedEachHasTheWeightsOfItsStep) {
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
