#include "offload/checkpoint_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "offload/checkpoint_plan.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

constexpr uint32_t kLayers = 5;
constexpr uint64_t kElements = 5000;  // of a checkpoint

/// Layers that read their input and write the next one's in forward, and read it in backward.
std::vector<CheckpointAccess> Step(uint32_t layers, uint32_t micro_batches) {
  std::vector<CheckpointAccess> accesses;
  uint32_t kernel = 0;
  for (uint32_t m = 0; m < micro_batches; ++m) accesses.push_back({m, true, kernel++});
  for (uint32_t i = 0; i < layers; ++i) {
    for (uint32_t m = 0; m < micro_batches; ++m, ++kernel) {
      accesses.push_back({i * micro_batches + m, false, kernel});
      if (i + 1 < layers) accesses.push_back({(i + 1) * micro_batches + m, true, kernel});
    }
  }
  for (uint32_t i = layers; i-- > 0;) {
    for (uint32_t m = 0; m < micro_batches; ++m) {
      accesses.push_back({i * micro_batches + m, false, kernel++});
    }
  }
  return accesses;
}

struct Copies {
  size_t out = 0;
  size_t back = 0;
};

Copies CopiesOf(const CheckpointPlan& plan) {
  Copies copies;
  for (const CheckpointPlan::Use& use : plan.uses) copies.out += use.copy_out ? 1 : 0;
  for (const auto& fetches : plan.fetches) copies.back += fetches.size();
  return copies;
}

TEST(CheckpointPlanTest, WithASlotForEachNothingIsCopied) {
  const Copies copies = CopiesOf(PlanCheckpoints(Step(5, 3), 15));
  EXPECT_EQ(copies.out, 0U);
  EXPECT_EQ(copies.back, 0U);
}

TEST(CheckpointPlanTest, WithALayersSlotsAndTwoMoreForwardFetchesNothing) {
  for (const uint32_t micro_batches : {1U, 2U, 5U}) {
    const auto accesses = Step(6, micro_batches);
    const CheckpointPlan plan = PlanCheckpoints(accesses, micro_batches + 2);
    const uint32_t first_backward = accesses.back().kernel + 1 - 6 * micro_batches;
    for (uint32_t kernel = 0; kernel + 1 < first_backward; ++kernel) {
      EXPECT_TRUE(plan.fetches[kernel].empty()) << kernel << " of " << micro_batches;
    }
    const Copies copies = CopiesOf(plan);
    EXPECT_EQ(copies.out, 6 * micro_batches - (micro_batches + 2));
    EXPECT_EQ(copies.back, copies.out);
  }
}

TEST(CheckpointPlanTest, WhatIsFetchedWasCopiedOutAndNoSlotIsTakenFromTheKernelThatUsesIt) {
  for (const uint32_t slots : {3U, 4U, 7U}) {
    const CheckpointPlan plan = PlanCheckpoints(Step(5, 2), slots);
    std::vector<bool> on_host(10);
    std::vector<int> in_slot(slots, -1);
    size_t use = 0;
    for (uint32_t kernel = 0; kernel < plan.fetches.size(); ++kernel) {
      std::vector<uint32_t> used;
      for (; use < plan.uses.size() && plan.uses[use].access.kernel == kernel; ++use) {
        const CheckpointPlan::Use& now = plan.uses[use];
        const auto checkpoint = static_cast<int>(now.access.checkpoint);
        if (now.access.write) {
          in_slot[now.slot] = checkpoint;
          on_host[now.access.checkpoint] = now.copy_out;
        }
        EXPECT_EQ(in_slot[now.slot], checkpoint);
        for (const uint32_t slot : used) EXPECT_NE(slot, now.slot);
        used.push_back(now.slot);
      }
      for (const CheckpointPlan::Fetch& fetch : plan.fetches[kernel]) {
        EXPECT_TRUE(on_host[fetch.checkpoint]);
        in_slot[fetch.slot] = static_cast<int>(fetch.checkpoint);
      }
    }
    EXPECT_EQ(use, plan.uses.size());
  }
}

TEST(CheckpointPlanTest, BackwardFetchesAsFarAheadAsThereAreSlots) {
  const CheckpointPlan plan = PlanCheckpoints(Step(8, 1), 3);
  // The last layers' inputs are there; behind each backward kernel one slot is free, which takes
  // the checkpoint that the kernel three behind it reads.
  const auto first_backward = static_cast<uint32_t>(plan.fetches.size()) - 8;
  for (uint32_t i = 0; i + 3 < 8; ++i) {
    ASSERT_EQ(plan.fetches[first_backward + i].size(), 1U) << i;
    EXPECT_EQ(plan.fetches[first_backward + i][0].checkpoint, 8 - 1 - (i + 3));
  }
}

TEST(CheckpointPlanTest, HundredsOfThousandsOfMicroBatchesArePlannedAsAFewAre) {
  // With a search through all slots for each access this would take hours in the release build.
  constexpr auto kMicroBatches = static_cast<uint32_t>(SearchShare(200'000));
  for (const uint32_t slots : {kMicroBatches + 2, 2 * kMicroBatches}) {
    const Copies copies = CopiesOf(PlanCheckpoints(Step(2, kMicroBatches), slots));
    EXPECT_EQ(copies.out, 2 * kMicroBatches - slots);
    EXPECT_EQ(copies.back, copies.out);
  }
}

TEST(CheckpointPlanTest, WhatItTakesGrowsWithTheStepAndHasAnEnd) {
  const CheckpointStore::Options few = {.checkpoints = 10, .slots = 10, .size = 1_KiB};
  const CheckpointStore::Options many = {.checkpoints = 1000, .slots = 10, .size = 1_KiB};
  EXPECT_GT(CheckpointStore::BookkeepingBytes(many, 3000, 2000),
            CheckpointStore::BookkeepingBytes(few, 30, 20));
  EXPECT_GE(CheckpointStore::BookkeepingBytes(many, 3000, 2000),
            Bytes{3000 * sizeof(CheckpointPlan::Use)});
  EXPECT_EQ(CheckpointStore::BookkeepingBytes(few, uint64_t{1} << 32, 1), Bytes{kMaxCount});
}

/// Makes a step's accesses; each writes or reads a pattern of the step and the checkpoint. `wrong`
/// counts elements that were not what was written.
void MakeStep(CheckpointStore& store, const std::vector<CheckpointAccess>& accesses, uint32_t step,
              device::Stream& compute, size_t* wrong) {
  auto& stream = static_cast<device::CpuStream&>(compute);
  store.BeginStep();
  for (size_t i = 0; i < accesses.size(); ++i) {
    const CheckpointAccess access = accesses[i];
    auto* const data =
        reinterpret_cast<uint32_t*>(store.Access(access.checkpoint, access.write, compute));
    stream.Launch([data, access, step, wrong]() {
      for (uint32_t e = 0; e < kElements; ++e) {
        const uint32_t value = (step * 1000 + access.checkpoint) * kElements + e;
        if (access.write) {
          data[e] = value;
        } else if (data[e] != value) {
          ++*wrong;
        }
      }
    });
    const bool ends = i + 1 == accesses.size() || accesses[i + 1].kernel != access.kernel;
    if (ends) store.EndKernel(compute);
  }
}

CheckpointStore::Options OptionsFor(uint32_t micro_batches, uint32_t slots) {
  return {.accesses = Step(kLayers, micro_batches),
          .checkpoints = kLayers * micro_batches,
          .slots = std::min(slots, kLayers * micro_batches),
          .size = Bytes{kElements * sizeof(uint32_t)}};
}

TEST(CheckpointStoreTest, EveryReadingFindsWhatWasWrittenInEveryStep) {
  for (const uint32_t micro_batches : {1U, 3U}) {
    for (const uint32_t slots : {3U, 5U, kLayers * micro_batches}) {
      const CheckpointStore::Options options = OptionsFor(micro_batches, slots);
      const auto device =
          device::CreateCpuDevice({.memory = CheckpointStore::DeviceBytes(options)}).value();
      auto store = CheckpointStore::Create(options, *device).value();
      EXPECT_EQ(device->used(), device->limit());
      const auto compute = device->CreateStream("compute").value();
      size_t wrong = 0;
      for (uint32_t step = 0; step < 3; ++step) {
        MakeStep(store, options.accesses, step, *compute, &wrong);
      }
      ASSERT_TRUE(compute->Synchronize().ok());
      ASSERT_TRUE(store.Synchronize().ok());
      EXPECT_EQ(wrong, 0U) << micro_batches << " micro-batches, " << slots << " slots";
    }
  }
}

TEST(CheckpointStoreTest, StepsMayHaveFewerCheckpointsThanItWasMadeFor) {
  constexpr uint32_t kMaxHeld = 4;
  for (const uint32_t slots : {3U, kMaxHeld + 2, kLayers * kMaxHeld}) {
    const CheckpointStore::Options options = OptionsFor(kMaxHeld, slots);
    const auto device =
        device::CreateCpuDevice({.memory = CheckpointStore::DeviceBytes(options)}).value();
    auto store = CheckpointStore::Create(options, *device).value();
    const auto compute = device->CreateStream("compute").value();
    size_t wrong = 0;
    uint32_t step = 0;
    for (const uint32_t micro_batches : {1U, 4U, 2U, 3U, 1U, 4U}) {
      const auto accesses = Step(kLayers, micro_batches);
      store.PlanSteps(accesses);
      MakeStep(store, accesses, step++, *compute, &wrong);
      MakeStep(store, accesses, step++, *compute, &wrong);
    }
    ASSERT_TRUE(compute->Synchronize().ok());
    ASSERT_TRUE(store.Synchronize().ok());
    EXPECT_EQ(wrong, 0U) << slots << " slots";
  }
}

}  // namespace
}  // namespace penstock::offload
