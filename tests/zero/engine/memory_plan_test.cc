// What the engine takes is planned from shapes alone, and the plan never spends more than there is.
#include "zero/engine/memory_plan.h"

#include <gmock/gmock.h>

#include "offload/slab.h"
#include "tests/zero/toy_model.h"
#include "zero/engine/device_figures.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kLayers = 5;
/// More than any toy needs.
constexpr Bytes kPlenty = 1_GiB;

struct Planned {
  explicit Planned(Tier parameters, Tier optimizer, bool tier_split = false)
      : model(ToySpec(kLayers, 30000)) {
    config.parameter_home = parameters;
    config.optimizer_home = optimizer;
    config.tier_split = tier_split;
    config.tile_elements = 8192;
    config.aio.block_size = 64_KiB;
    config.aio.queue_depth = 2;
    layout = MakeLayout(model, config);
    minimum = MinimumMemory(model, layout, config);
  }
  Result<MemoryPlan> With(Bytes device, Bytes host) const {
    return PlanMemory(model, layout, config, device, host);
  }
  Bytes Device(const MemoryPlan& plan) const {
    return DeviceNeed(model, layout, config, plan).total();
  }
  Bytes Host(const MemoryPlan& plan) const { return HostNeed(layout, config, plan).total(); }

  ModelSpec model;
  config::Config config;
  offload::ShardLayout layout;
  MemoryMinimum minimum;
};

const std::pair<Tier, Tier> kPlacements[] = {
    {Tier::kDevice, Tier::kDevice}, {Tier::kDevice, Tier::kHost}, {Tier::kDevice, Tier::kNvme},
    {Tier::kHost, Tier::kHost},     {Tier::kHost, Tier::kNvme},   {Tier::kNvme, Tier::kHost},
    {Tier::kNvme, Tier::kNvme}};

TEST(MemoryPlanTest, TheMinimumWorksAndAByteLessIsRefusedWithTheSumAndWhatWouldWork) {
  for (const auto& [parameters, optimizer] : kPlacements) {
    const Planned planned(parameters, optimizer);
    const auto& [device, host, device_sum, host_sum] = planned.minimum;
    const auto plan = planned.With(device, host);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(planned.Device(*plan), device);
    EXPECT_EQ(planned.Host(*plan), host);
    const auto small_device = planned.With(device - 1_B, kPlenty);
    ASSERT_FALSE(small_device.ok());
    EXPECT_EQ(small_device.error().code, ErrorCode::kBudget);
    EXPECT_THAT(small_device.error().message, AllOf(HasSubstr(device_sum), HasSubstr(" 1 bytes")));
    const auto small_host = planned.With(kPlenty, host - 1_B);
    ASSERT_FALSE(small_host.ok());
    EXPECT_EQ(small_host.error().code, ErrorCode::kBudget);
    EXPECT_THAT(small_host.error().message,
                AllOf(HasSubstr(host_sum), HasSubstr(std::to_string(host.value) + " bytes")));
  }
}

TEST(MemoryPlanTest, NoAmountOfMemoryIsOverspent) {
  for (const bool tier_split : {false, true}) {
    for (const auto& [parameters, optimizer] : kPlacements) {
      const Planned planned(parameters, optimizer, tier_split);
      for (uint64_t more = 0; more < (6_MiB).value; more += 12345) {
        const Bytes device = planned.minimum.device_minimum + Bytes{more};
        const Bytes host = planned.minimum.host_minimum + Bytes{more};
        const auto plan = planned.With(device, host);
        ASSERT_TRUE(plan.ok()) << plan.error().message;
        ASSERT_LE(planned.Device(*plan), device);
        ASSERT_LE(planned.Host(*plan), host);
      }
    }
  }
}

TEST(MemoryPlanTest, LayersHaveAsManySlotsAsFit) {
  const Planned planned(Tier::kNvme, Tier::kNvme);
  for (uint32_t slots = 1; slots <= kLayers; ++slots) {
    const Bytes need = DeviceNeed(planned.model, planned.layout, planned.config,
                                  {.shared_slots = slots, .stages_layers = slots > 2})
                           .total();
    EXPECT_EQ(planned.With(need, kPlenty)->shared_slots, slots);
    if (slots == 1) continue;
    EXPECT_EQ(planned.With(need - 1_B, kPlenty)->shared_slots, slots - 1);
  }
  EXPECT_EQ(planned.With(kPlenty, kPlenty)->shared_slots, kLayers) << "and no more than there are";
  EXPECT_EQ(Planned(Tier::kDevice, Tier::kHost).With(kPlenty, kPlenty)->shared_slots, kLayers);
}

TEST(MemoryPlanTest, WhereAllTilesFitTheyLiveOnTheHostAndNoneDoesWithoutASplit) {
  const Planned split(Tier::kNvme, Tier::kNvme, true);
  const size_t tiles = split.layout.tiles.size();
  EXPECT_EQ(split.With(kPlenty, kPlenty)->store.host_tiles, tiles);
  EXPECT_EQ(Planned(Tier::kNvme, Tier::kNvme).With(kPlenty, kPlenty)->store.host_tiles, 0);
  MemoryPlan all = *split.With(kPlenty, split.minimum.host_minimum);
  all.store.host_tiles = tiles;
  const Bytes need = HostNeed(split.layout, split.config, all).total();
  EXPECT_EQ(split.With(kPlenty, need)->store.host_tiles, tiles);
  EXPECT_LT(split.With(kPlenty, need - 1_B)->store.host_tiles, tiles);
}

TEST(MemoryPlanTest, TilesLiveOnTheHostOnlyWhenTheDrivesHaveTheirBlocks) {
  const Planned planned(Tier::kNvme, Tier::kNvme, true);
  size_t most_at_home = 0;
  for (uint64_t more = 0; more < (4_MiB).value; more += 4096) {
    const auto plan = planned.With(kPlenty, planned.minimum.host_minimum + Bytes{more});
    const offload::TileStoreOptions& store = plan->store;
    if (store.host_tiles == 0 || store.host_tiles == planned.layout.tiles.size()) continue;
    most_at_home = std::max(most_at_home, store.host_tiles);
    // A window of weights for two modules, and four pairs for what is in flight.
    EXPECT_GE(store.weight_blocks, 2 * planned.layout.most_tiles() + 4);
    EXPECT_GE(store.record_blocks, 4U);
  }
  EXPECT_GT(most_at_home, 0U);
}

TEST(MemoryPlanTest, EachDriveHasItsBlocksBeforeATileLivesOnTheHost) {
  Planned planned(Tier::kNvme, Tier::kNvme, true);
  planned.config.nvme_paths = {"/a", "/b"};
  size_t most_at_home = 0;
  for (uint64_t more = 0; more < (4_MiB).value; more += 4096) {
    const auto plan = planned.With(kPlenty, planned.minimum.host_minimum + Bytes{more});
    const offload::TileStoreOptions& store = plan->store;
    if (store.host_tiles == 0 || store.host_tiles == planned.layout.tiles.size()) continue;
    most_at_home = std::max(most_at_home, store.host_tiles);
    EXPECT_GE(store.record_blocks, std::min<size_t>(2 * 4, planned.layout.tiles.size() - 1));
  }
  EXPECT_GT(most_at_home, 0U);
}

TEST(MemoryPlanTest, HostMemoryIsTheSlabOfTheHomesAndWhatIsKnownOfTiles) {
  const Planned host(Tier::kHost, Tier::kHost);
  const HostBytes need = HostNeed(host.layout, host.config, *host.With(kPlenty, kPlenty));
  EXPECT_EQ(need.parameters, AlignUp(host.layout.weight_bytes(), offload::kSlabAlignment));
  EXPECT_EQ(need.states, AlignUp(host.layout.record_bytes(), offload::kSlabAlignment));
  EXPECT_EQ(need.gradients, AlignUp(host.layout.gradient_bytes(), offload::kSlabAlignment));
  EXPECT_GT(need.bookkeeping, BlockSumsOf(host.layout));
}

TEST(MemoryPlanTest, FiguresOfAResidentTrainingAreCountedWhereTheyArriveAsWell) {
  const Planned resident(Tier::kDevice, Tier::kDevice);
  const Planned host(Tier::kHost, Tier::kHost);
  const auto bookkeeping = [](const Planned& planned) {
    return HostNeed(planned.layout, planned.config, {}).bookkeeping;
  };
  const Bytes figures = DeviceFigures::Need(resident.layout);
  EXPECT_GT(figures, BlockSumsOf(resident.layout) * 2) << "more than sums";
  EXPECT_EQ(bookkeeping(resident) - bookkeeping(host), AlignUp(figures, 4_KiB));
}

}  // namespace
}  // namespace penstock::zero
