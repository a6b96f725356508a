// Turns the model's order of use into a schedule: device slots, what is copied when, what gives
// way.
#pragma once

#include <cstdint>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "zero/model.h"

namespace penstock::zero {

/// When the update of a module begins: when all gradients of the step are there, or its own.
enum class UpdateStart { kStepEnd, kGradient };

/// How many modules of the model are marked `repeated`, and the most that one of them takes.
struct RepeatedModules {
  uint32_t count = 0;
  Bytes slot;                     ///< for its weights on the device
  uint64_t trained_elements = 0;  ///< that have gradients
};
RepeatedModules CountRepeated(const ModelSpec& model, const offload::ShardLayout& layout);

/// Every tile, by the first use of its module in a step, then by its place in it.
std::vector<offload::TileId> TilesByFirstUse(const ModelSpec& model,
                                             const offload::ShardLayout& layout);

/// Each module that is not repeated gets a slot of its own; the repeated ones share `shared_slots`
/// (1 to their count; 0 if there are none). At the start of a step everything on the device is
/// stale, as every module was updated. Within it, what is still there is used; the module that
/// gives way is the one needed furthest away (Belady's MIN), and among those not needed any more in
/// this step the one that was used longest ago, so that its slot is free soonest.
offload::Schedule BuildSchedule(const ModelSpec& model, const offload::ShardLayout& layout,
                                uint32_t shared_slots, UpdateStart updates);

}  // namespace penstock::zero
