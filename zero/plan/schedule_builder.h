// Turns the model's order of use into a schedule: device slots, what is copied when, and what is
// evicted.
#pragma once

#include <cstdint>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "zero/model.h"
#include "zero/plan/step_decision.h"

namespace penstock::zero {

/// The number of modules of the model that are marked `repeated`, and the most that one of them
/// takes.
struct RepeatedModules {
  uint32_t count = 0;
  Bytes slot;                     ///< bytes of its weights on the device
  uint64_t trained_elements = 0;  ///< elements with gradients
};
RepeatedModules CountRepeated(const ModelSpec& model, const offload::ShardLayout& layout);

/// Returns every tile, by the first use of its module in a step, then by its place in the module.
std::vector<offload::TileId> TilesByFirstUse(const ModelSpec& model,
                                             const offload::ShardLayout& layout);

/// Makes the schedule. Each module that is not repeated gets a slot of its own; the repeated ones
/// share `shared_slots` (1 to their count; 0 if there are none). At the start of a step everything
/// on the device is stale, because every module was updated. Within a step, weights that are still
/// on the device are used again. The module needed furthest in the future is evicted (Belady's
/// MIN); among modules not needed any more in this step, the one that was used longest ago, so that
/// its slot is free soonest.
offload::Schedule BuildSchedule(const ModelSpec& model, const offload::ShardLayout& layout,
                                uint32_t shared_slots, UpdateStart updates);

}  // namespace penstock::zero
