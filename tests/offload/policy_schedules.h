// Layouts and schedules for tests of offload::TilePolicy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "offload/layout.h"
#include "offload/schedule.h"

namespace penstock::offload {

/// Modules of so many tiles of one block each.
inline ShardLayout LayoutOf(const std::vector<uint32_t>& tiles_of_modules) {
  ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16))};
  for (const uint32_t count : tiles_of_modules) {
    model.modules.push_back(
        MakeModule("module", {{.name = "weight", .shape = {count * kBlockElements}}}));
  }
  return MakeShard(std::move(model), kBlockElements);
}

/// When the updates of a step begin.
enum class Begins { kNever, kAtStepEnd, kWithGradients };

/// The schedule of these uses, of which each module has one that fetches it.
inline Schedule ScheduleOf(const ShardLayout& layout, std::vector<ScheduledUse> uses,
                           Begins updates) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  const size_t modules = layout.model.modules.size();
  Schedule schedule{.uses = std::move(uses), .first_use = std::vector<uint32_t>(modules, kNone)};
  std::vector<uint32_t> last_use(modules);
  std::vector<ModuleId> by_first;
  for (uint32_t use = 0; use < schedule.length(); ++use) {
    const ModuleId module = schedule.uses[use].module;
    if (schedule.first_use[Index(module)] == kNone) {
      schedule.first_use[Index(module)] = use;
      by_first.push_back(module);
    }
    last_use[Index(module)] = use;
  }
  std::vector<ModuleId> by_last = by_first;
  std::ranges::sort(by_last, {}, [&](ModuleId module) { return last_use[Index(module)]; });
  const auto append = [&](std::vector<TileId>& order, const std::vector<ModuleId>& of) {
    for (const ModuleId module : of) {
      for (const TileId tile : layout.TilesOf(module)) order.push_back(tile);
    }
  };
  append(schedule.update_order, by_first);
  append(schedule.load_order, updates == Begins::kWithGradients ? by_last : by_first);
  for (size_t module = 0; module < modules; ++module) {
    schedule.update_at.push_back(updates == Begins::kWithGradients
                                     ? last_use[module]
                                     : schedule.length() + schedule.first_use[module]);
  }
  return schedule;
}

/// All modules forwards, then backwards. `kept`: those that the device still has when it goes back.
inline Schedule ForthAndBack(const ShardLayout& layout, const std::set<size_t>& kept,
                             Begins updates) {
  std::vector<ScheduledUse> uses;
  const size_t modules = layout.model.modules.size();
  for (size_t i = 0; i < 2 * modules; ++i) {
    const bool backward = i >= modules;
    const size_t module = backward ? 2 * modules - 1 - i : i;
    uses.push_back({.module = ModuleId{static_cast<uint32_t>(module)},
                    .fetch = !backward || !kept.contains(module),
                    .backward = backward});
  }
  return ScheduleOf(layout, std::move(uses), updates);
}

/// Modules in any order, some more often than others.
inline Schedule AnyOrder(const ShardLayout& layout, Begins updates, std::mt19937_64& random) {
  std::vector<ScheduledUse> uses;
  for (const ModuleId module : Ids<ModuleId>(layout.model.modules.size())) {
    uses.insert(uses.end(), 1 + random() % 3, {.module = module});
  }
  std::shuffle(uses.begin(), uses.end(), random);
  std::set<ModuleId> seen;
  for (ScheduledUse& use : uses) use.fetch = seen.insert(use.module).second || random() % 2 == 0;
  return ScheduleOf(layout, std::move(uses), updates);
}

/// One use of a step as it comes, which may be another one than the schedule names.
struct StepUse {
  ModuleId module{};
  uint64_t clock = 0;  ///< where in the schedule the step is
  bool fetch = false;
  std::vector<ModuleId> begins;  ///< modules whose updates begin after it
};

/// A step just as the schedule has it. Updates that begin with gradients do so at the last uses.
inline std::vector<StepUse> StepInOrder(const Schedule& schedule) {
  std::vector<StepUse> step;
  std::set<ModuleId> begun;
  for (uint64_t use = schedule.length(); use-- > 0;) {
    const ScheduledUse& planned = schedule.uses[use];
    step.push_back({.module = planned.module, .clock = use, .fetch = planned.fetch});
    if (begun.insert(planned.module).second) step.back().begins = {planned.module};
  }
  std::ranges::reverse(step);
  return step;
}

/// A step that leaves uses of the schedule out, swaps some and adds others.
inline std::vector<StepUse> StepInAnyOrder(const Schedule& schedule, std::mt19937_64& random) {
  std::vector<ModuleId> modules;
  for (const ScheduledUse& use : schedule.uses) {
    if (random() % 8 > 0) modules.push_back(use.module);
    if (random() % 8 == 0) modules.push_back(schedule.uses[random() % schedule.length()].module);
  }
  for (uint64_t swaps = random() % 4; swaps > 0 && !modules.empty(); --swaps) {
    std::swap(modules[random() % modules.size()], modules[random() % modules.size()]);
  }
  if (random() % 4 == 0) std::shuffle(modules.begin(), modules.end(), random);
  if (modules.empty()) modules.push_back(schedule.uses.back().module);
  std::vector<StepUse> step;
  std::set<ModuleId> there;
  uint64_t clock = 0;
  for (const ModuleId module : modules) {
    const bool planned = clock < schedule.length() && schedule.uses[clock].module == module;
    // What a late use copies takes the slot of what was planned to stay there.
    const bool fetch =
        there.insert(module).second || (planned && schedule.uses[clock].fetch) || random() % 2 == 0;
    step.push_back(
        {.module = module, .clock = std::min(clock, schedule.length() - 1), .fetch = fetch});
    if (planned) ++clock;
  }
  // Mostly at the last use, but gradients may be complete before.
  std::set<ModuleId> begun;
  for (size_t use = step.size(); use-- > 0;) {
    const ModuleId module = step[use].module;
    if (random() % 4 > 0 && begun.insert(module).second) step[use].begins = {module};
  }
  return step;
}

}  // namespace penstock::offload
