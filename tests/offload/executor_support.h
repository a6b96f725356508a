// The executor over the CPU device and a tile store on a file, whose updates a thread carries out:
// what its tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/executor.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "offload/tile_store.h"
#include "tests/offload/await_update.h"
#include "tests/offload/policy_schedules.h"
#include "tests/offload/support.h"

namespace penstock::offload {

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
  /// "e", which has a slot of its own, and four layers that share two slots.
  static constexpr ModuleId kE{0};
  static ModuleId Layer(uint32_t i) { return ModuleId{i + 1}; }

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
      CheckReads();
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
    constexpr std::byte kScribbled{0xEE};
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
    // A weight that was compared may make room for a further read.
    uint64_t before = 0;
    do {
      before = checked_;
      io_->Drain();
      CheckReads();
    } while (checked_ != before);
  }

  void CheckReads() {
    const std::lock_guard lock(checking_);
    while (CheckRead(*store_)) ++checked_;
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
  std::mutex checking_;
  std::atomic<uint64_t> checked_ = 0;  ///< weights that were compared with their checksums
  std::atomic<uint64_t> wrong_bytes_ = 0;
  uint64_t version_ = 0;
};

}  // namespace penstock::offload
