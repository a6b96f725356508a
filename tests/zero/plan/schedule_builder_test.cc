#include "zero/plan/schedule_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

using offload::Index;
using offload::Schedule;

/// The least fetches that any choice of victims needs for the repeated modules of one step.
uint64_t LeastFetches(const ModelSpec& model, uint32_t slots) {
  std::vector<uint32_t> order;
  for (const ModuleUse& use : model.step) {
    if (model.modules[Index(use.module)].repeated) order.push_back(Index(use.module));
  }
  std::map<std::pair<size_t, std::vector<uint32_t>>, uint64_t> known;
  const std::function<uint64_t(size_t, std::vector<uint32_t>)> best =
      [&](size_t use, std::vector<uint32_t> held) -> uint64_t {
    if (use == order.size()) return 0;
    std::sort(held.begin(), held.end());
    const auto key = std::pair(use, held);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    uint64_t least = 0;
    if (std::find(held.begin(), held.end(), order[use]) != held.end()) {
      least = best(use + 1, held);
    } else if (held.size() < slots) {
      held.push_back(order[use]);
      least = 1 + best(use + 1, held);
    } else {
      least = std::numeric_limits<uint64_t>::max();
      for (size_t victim = 0; victim < held.size(); ++victim) {
        std::vector<uint32_t> next = held;
        next[victim] = order[use];
        least = std::min(least, 1 + best(use + 1, next));
      }
    }
    return known[key] = least;
  };
  return best(0, {});
}

TEST(ScheduleBuilderTest, FetchesAreAsFewAsAnyChoiceOfVictimsAllows) {
  for (uint64_t layers : {1, 2, 3, 5, 7}) {
    const ModelSpec model = ToySpec(layers, 5000);
    const offload::ShardLayout layout = MakeLayout(model, DType::kBFloat16, 8192);
    for (uint32_t slots = 1; slots <= layers; ++slots) {
      const Schedule schedule = BuildSchedule(model, layout, slots, UpdateStart::kStepEnd);
      uint64_t fetches = 0;
      for (const offload::ScheduledUse& use : schedule.uses) {
        if (model.modules[Index(use.module)].repeated && use.fetch) ++fetches;
      }
      EXPECT_EQ(fetches, LeastFetches(model, slots)) << layers << " layers, " << slots << " slots";
    }
  }
}

TEST(ScheduleBuilderTest, EveryUseFindsItsModuleInItsSlotAtEveryStep) {
  const ModelSpec model = ToySpec(6, 5000);
  const offload::ShardLayout layout = MakeLayout(model, DType::kFloat32, 8192);
  for (uint32_t slots = 1; slots <= 6; ++slots) {
    const Schedule schedule = BuildSchedule(model, layout, slots, UpdateStart::kStepEnd);
    std::map<uint32_t, ModuleId> held;
    for (size_t use = 0; use < schedule.uses.size(); ++use) {
      const offload::ScheduledUse& planned = schedule.uses[use];
      EXPECT_EQ(planned.module, model.step[use].module);
      EXPECT_GE(schedule.slot_bytes[planned.slot], layout.SlotBytes(planned.module));
      if (planned.fetch) held[planned.slot] = planned.module;
      EXPECT_EQ(held[planned.slot], planned.module) << "use " << use;
    }
  }
}

TEST(ScheduleBuilderTest, WithASecondSlotEveryFetchOfALayerMayBeMadeUnderTheUseBefore) {
  const ModelSpec model = ToySpec(6, 5000);
  const offload::ShardLayout layout = MakeLayout(model, DType::kBFloat16, 8192);
  for (uint32_t slots = 1; slots <= 6; ++slots) {
    const Schedule schedule = BuildSchedule(model, layout, slots, UpdateStart::kStepEnd);
    EXPECT_FALSE(schedule.FetchesAhead(0)) << "the step before updates it";
    EXPECT_FALSE(schedule.FetchesAhead(schedule.length()));
    for (size_t use = 1; use < schedule.length(); ++use) {
      const bool behind_a_layer = model.modules[Index(model.step[use - 1].module)].repeated &&
                                  model.modules[Index(model.step[use].module)].repeated;
      const bool possible = slots > 1 || !behind_a_layer;
      EXPECT_EQ(schedule.FetchesAhead(use), schedule.uses[use].fetch && possible)
          << "use " << use << " with " << slots << " slots";
    }
  }
}

TEST(ScheduleBuilderTest, AModuleThatIsNotRepeatedHasASlotThatNoOtherUses) {
  const ModelSpec model = ToySpec(4, 5000);
  const offload::ShardLayout layout = MakeLayout(model, DType::kBFloat16, 8192);
  const Schedule schedule = BuildSchedule(model, layout, 2, UpdateStart::kStepEnd);
  ASSERT_EQ(schedule.own_slot.size(), model.modules.size());
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    const std::optional<uint32_t> own = schedule.own_slot[Index(id)];
    EXPECT_EQ(own.has_value(), !model.modules[Index(id)].repeated);
    for (const offload::ScheduledUse& use : schedule.uses) {
      EXPECT_EQ(own == use.slot, own.has_value() && use.module == id);
    }
  }
}

TEST(ScheduleBuilderTest, TheFirstUseOfAStepIsAlwaysFetchedAsItsWeightsAreNew) {
  const ModelSpec model = ToySpec(4, 5000);
  const Schedule schedule =
      BuildSchedule(model, MakeLayout(model, DType::kBFloat16, 8192), 4, UpdateStart::kStepEnd);
  for (size_t module = 0; module < model.modules.size(); ++module) {
    EXPECT_TRUE(schedule.uses[schedule.first_use[module]].fetch);
  }
}

TEST(ScheduleBuilderTest, UpdatesAreInTheOrderOfNextUse) {
  const ModelSpec model = ToySpec(3, 20000);
  const offload::ShardLayout layout = MakeLayout(model, DType::kBFloat16, 4096);
  const Schedule schedule = BuildSchedule(model, layout, 2, UpdateStart::kStepEnd);
  ASSERT_EQ(schedule.update_order.size(), layout.tiles.size());
  uint32_t before = 0;
  for (offload::TileId tile : schedule.update_order) {
    const uint32_t use = schedule.first_use[Index(layout.tile(tile).module)];
    EXPECT_GE(use, before);
    before = use;
  }
}

TEST(FetchesTest, TheNextFetchIsOfThisStepOrElseTheFirstOfTheNext) {
  const ModelSpec model = ToySpec(3, 5000);
  const Schedule schedule =
      BuildSchedule(model, MakeLayout(model, DType::kBFloat16, 8192), 1, UpdateStart::kStepEnd);
  // Uses: 0 in, 1..3 layers, 4 out, 5 in, 6..8 layers backwards (the last layer is still there).
  const offload::Fetches fetches(schedule);
  EXPECT_EQ(fetches.Next(ModuleId{1}, 0), 1);
  EXPECT_EQ(fetches.Next(ModuleId{1}, 2), 8);
  EXPECT_EQ(fetches.Next(ModuleId{3}, 4), 9 + 3);
  EXPECT_EQ(fetches.Next(ModuleId{0}, 1), 9 + 0);
  EXPECT_EQ(fetches.Next(ModuleId{2}, 9 + 8), 18 + 2);
}

}  // namespace
}  // namespace penstock::zero
