// What the engine takes from the device and from the host, before it takes anything.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"
#include "offload/tile_store.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace penstock::zero {

/// What the budgets were spent on.
struct MemoryLayout {
  uint32_t shared_slots = 0;        ///< device slots for repeated modules
  offload::TileStoreOptions store;  ///< host blocks
};

/// True where states and weights all live on the device and the CPU does no optimizer work.
bool IsResident(const Config& config);

/// What a module's records and gradients take, tile behind tile.
struct ModuleBytes {
  Bytes records;
  Bytes gradients;
};
ModuleBytes BytesOf(const offload::ShardLayout& layout, ModuleId module);

/// Device bytes by class, for `shared_slots` slots, as the engine allocates them (each allocation
/// rounded to kDeviceAlignment).
struct DeviceBytes {
  Bytes parameters;
  Bytes states;     ///< resident training only
  Bytes gradients;  ///< fp32 sums, and staging or the rounded gradients
  Bytes total() const { return parameters + states + gradients; }
};
DeviceBytes DeviceNeed(const ModelSpec& model, const offload::ShardLayout& layout,
                       const Config& config, uint32_t shared_slots);

/// Host bytes by class: weights, gradients and records in the slab, and what is known of each tile
/// and module beside it.
struct HostBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes states;
  Bytes bookkeeping;
  Bytes slab() const { return parameters + gradients + states; }
  Bytes total() const { return slab() + bookkeeping; }
};
HostBytes HostNeed(const ModelSpec& model, const offload::ShardLayout& layout, const Config& config,
                   const offload::TileStoreOptions& store);

/// Spends the budgets: the minimum of every class first, then as many device slots as fit, and in
/// host memory blocks to keep the drives busy, tiles at home, and blocks to read ahead. Errors:
/// kBudget, with the sum that does not fit and the smallest limit that works.
Result<MemoryLayout> PlanMemory(const ModelSpec& model, const offload::ShardLayout& layout,
                                const Config& config, Bytes device_available, Bytes host_available);

/// The minimum that PlanMemory accepts, with its sums in words.
MemoryPlan MinimumMemory(const ModelSpec& model, const offload::ShardLayout& layout,
                         const Config& config);

}  // namespace penstock::zero
