#include "zero/plan/schedule_builder.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"

namespace penstock::zero {
namespace {

using offload::Index;
using offload::Schedule;
using offload::ScheduledUse;
using offload::TileId;

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

/// One shared slot as the simulation sees it.
struct SharedSlot {
  std::optional<ModuleId> module;  ///< empty: nothing, or a stale copy
  uint64_t last_used = 0;
  uint64_t next_use = kNever;  ///< the module's next use in this step
};

/// For each use of a step, the next use of its module; kNever if there is none.
std::vector<uint64_t> NextUses(const ModelSpec& model) {
  std::vector<uint64_t> next(model.step.size());
  std::vector<uint64_t> later(model.modules.size(), kNever);
  for (size_t use = model.step.size(); use-- > 0;) {
    next[use] = std::exchange(later[Index(model.step[use].module)], use);
  }
  return next;
}

/// The slot to give to a module that is fetched.
size_t ChooseVictim(const std::vector<SharedSlot>& slots) {
  const auto rank = [](const SharedSlot& slot) {
    const uint64_t next = slot.module ? slot.next_use : kNever;
    return std::pair(next, std::numeric_limits<uint64_t>::max() - slot.last_used);
  };
  const auto best = std::max_element(
      slots.begin(), slots.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return static_cast<size_t>(best - slots.begin());
}

/// Plans the shared modules' uses of one step, given how the step before left the slots.
void SimulateStep(const ModelSpec& model, const std::vector<uint64_t>& next_uses,
                  uint32_t first_slot, uint64_t clock, std::vector<SharedSlot>& slots,
                  std::vector<ScheduledUse>& uses) {
  for (SharedSlot& slot : slots) slot.module.reset();
  for (size_t use = 0; use < model.step.size(); ++use) {
    const ModuleId module = model.step[use].module;
    if (!model.modules[Index(module)].repeated) continue;
    size_t at = 0;
    while (at < slots.size() && slots[at].module != module) ++at;
    const bool hit = at < slots.size();
    if (!hit) at = ChooseVictim(slots);
    slots[at] = {.module = module, .last_used = clock + use + 1, .next_use = next_uses[use]};
    uses[use] = {.module = module,
                 .slot = first_slot + static_cast<uint32_t>(at),
                 .fetch = !hit,
                 .backward = model.step[use].backward};
  }
}

void AppendTiles(const offload::ShardLayout& layout, ModuleId module, std::vector<TileId>& order) {
  for (const TileId tile : layout.TilesOf(module)) order.push_back(tile);
}

std::vector<uint32_t> FirstUses(const ModelSpec& model) {
  std::vector<uint32_t> first(model.modules.size(), std::numeric_limits<uint32_t>::max());
  for (uint32_t use = 0; use < model.step.size(); ++use) {
    uint32_t& of_module = first[Index(model.step[use].module)];
    of_module = std::min(of_module, use);
  }
  return first;
}

/// The updates begin together, the one needed soonest first.
void UpdateAtStepEnd(Schedule& schedule) {
  schedule.load_order = schedule.update_order;
  for (const uint32_t first : schedule.first_use) {
    schedule.update_at.push_back(schedule.length() + first);
  }
}

/// Each update begins at the module's last use, and not before the gradients of the modules that
/// come before it.
void UpdateWithGradients(const ModelSpec& model, const offload::ShardLayout& layout,
                         Schedule& schedule) {
  std::vector<uint64_t> last_use(layout.model.modules.size());
  for (size_t use = 0; use < model.step.size(); ++use) {
    last_use[Index(model.step[use].module)] = use;
  }
  schedule.update_at.resize(layout.model.modules.size());
  uint64_t reached = 0;
  for (const ModuleId module : model.gradients) {
    reached = std::max(reached, last_use[Index(module)]);
    schedule.update_at[Index(module)] = reached;
    for (const TileId tile : layout.TilesOf(module)) {
      if (!layout.frozen(tile)) schedule.load_order.push_back(tile);
    }
  }
}

}  // namespace

RepeatedModules CountRepeated(const ModelSpec& model, const offload::ShardLayout& layout) {
  RepeatedModules repeated;
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    if (!model.modules[Index(id)].repeated) continue;
    ++repeated.count;
    repeated.slot = std::max(repeated.slot, layout.SlotBytes(id));
    repeated.trained_elements =
        std::max(repeated.trained_elements, layout.model.TrainedElements(id));
  }
  return repeated;
}

std::vector<TileId> TilesByFirstUse(const ModelSpec& model, const offload::ShardLayout& layout) {
  const std::vector<uint32_t> first_use = FirstUses(model);
  std::vector<TileId> order;
  for (uint32_t use = 0; use < model.step.size(); ++use) {
    const ModuleId module = model.step[use].module;
    if (first_use[Index(module)] == use) AppendTiles(layout, module, order);
  }
  PENSTOCK_CHECK(order.size() == layout.tiles.size(), "every module needs a use in the step");
  return order;
}

Schedule BuildSchedule(const ModelSpec& model, const offload::ShardLayout& layout,
                       uint32_t shared_slots, UpdateStart updates) {
  const RepeatedModules repeated = CountRepeated(model, layout);
  PENSTOCK_CHECK(shared_slots <= repeated.count && (shared_slots > 0) == (repeated.count > 0));
  Schedule schedule;
  schedule.uses.resize(model.step.size());
  std::vector<bool> used(model.modules.size(), false);
  schedule.own_slot.resize(model.modules.size());
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    if (model.modules[Index(id)].repeated) continue;
    schedule.own_slot[Index(id)] = static_cast<uint32_t>(schedule.slot_bytes.size());
    schedule.slot_bytes.push_back(layout.SlotBytes(id));
  }
  for (size_t use = 0; use < model.step.size(); ++use) {
    const ModuleId module = model.step[use].module;
    if (model.modules[Index(module)].repeated) continue;
    schedule.uses[use] = {.module = module,
                          .slot = *schedule.own_slot[Index(module)],
                          .fetch = !used[Index(module)],
                          .backward = model.step[use].backward};
    used[Index(module)] = true;
  }
  const auto first_shared = static_cast<uint32_t>(schedule.slot_bytes.size());
  std::vector<SharedSlot> slots(shared_slots);
  // The second pass starts from the slots as a step leaves them: that is the plan of every step.
  const std::vector<uint64_t> next_uses = NextUses(model);
  for (uint64_t step = 0; step < 2; ++step) {
    SimulateStep(model, next_uses, first_shared, step * model.step.size(), slots, schedule.uses);
  }
  schedule.slot_bytes.insert(schedule.slot_bytes.end(), shared_slots, repeated.slot);
  schedule.first_use = FirstUses(model);
  std::ranges::copy_if(TilesByFirstUse(model, layout), std::back_inserter(schedule.update_order),
                       [&](TileId tile) { return !layout.frozen(tile); });
  if (updates == UpdateStart::kGradient) {
    UpdateWithGradients(model, layout, schedule);
  } else {
    UpdateAtStepEnd(schedule);
  }
  return schedule;
}

}  // namespace penstock::zero
