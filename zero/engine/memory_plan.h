// Plans what the engine takes from the device and from the host, before it takes anything.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "config/config.h"
#include "offload/layout.h"
#include "offload/tile_store.h"
#include "zero/engine/engine.h"
#include "zero/model.h"
#include "zero/plan/commit_verification.h"

namespace penstock::zero {

/// How the budgets were spent.
struct MemoryPlan {
  uint32_t shared_slots = 0;  ///< device slots for repeated modules
  /// With several ranks: whole gradients of repeated modules on the device. With two, one is
  /// exchanged while the next is computed.
  uint32_t gradient_buffers = 1;
  /// Whether rounded gradients of a whole layer are staged on the device, so that the next layer's
  /// kernels wait for no copy (zero/plan/gradient_batches.h). Otherwise as little as works is.
  bool stages_layers = false;
  /// Host blocks. With states on the device, `record_blocks` pairs of them: tiles on their way
  /// between device and drive.
  offload::TileStoreOptions store;
  CommitVerification verification;  ///< whether commits are verified, whose room is counted then
};

/// Returns whether states and weights all live on the device, so that the CPU does no optimizer
/// work.
bool IsResident(const config::Config& config);

/// Sizes of a module's records and gradients, one tile after the other.
struct ModuleBytes {
  Bytes records;
  Bytes gradients;
};
ModuleBytes BytesOf(const offload::ShardLayout& layout, ModuleId module);

/// The block sums of a shard, of which every placement has a copy on the host.
Bytes BlockSumsOf(const offload::ShardLayout& layout);

/// What rounded gradients are staged in on their way to the host.
Bytes GradientStaging(const ModelSpec& model, const offload::ShardLayout& layout,
                      const MemoryPlan& plan);

/// Device bytes by class, with the slots and buffers of a plan, as the engine allocates them (each
/// allocation rounded to kDeviceAlignment).
struct DeviceBytes {
  Bytes parameters;
  Bytes states;     ///< resident training only
  Bytes gradients;  ///< fp32 sums, and staging, or the rounded gradients and figures
  /// Losses and counts of zeros; with several ranks the gradients of micro-batches, and block sums.
  Bytes exchange;
  Bytes total() const { return parameters + states + gradients + exchange; }
};
DeviceBytes DeviceNeed(const ModelSpec& model, const offload::ShardLayout& layout,
                       const config::Config& config, const MemoryPlan& plan);

/// Host bytes by class: weights, gradients and records in the slab, and tables of tiles and modules
/// beside it.
struct HostBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes states;
  Bytes bookkeeping;
  Bytes slab() const { return parameters + gradients + states; }
  Bytes total() const { return slab() + bookkeeping; }
};
HostBytes HostNeed(const offload::ShardLayout& layout, const config::Config& config,
                   const MemoryPlan& plan);

/// Spends the budgets: first the minimum of every class, then a second device slot, staging for a
/// layer's gradients, and as many further slots as fit; in host
/// memory blocks to keep the drives busy, then tiles that live there, then blocks to read ahead.
/// The fewer tiles live on the drive, the more of a step verification costs: so it is decided with
/// its room counted, and the host memory is spent anew without that where "auto" is then off.
/// Errors: kBudget, with the sum that does not fit and the smallest limit that works.
Result<MemoryPlan> PlanMemory(const ModelSpec& model, const offload::ShardLayout& layout,
                              const config::Config& config, Bytes device_available,
                              Bytes host_available);

/// Returns the minimum that PlanMemory accepts, with its sums in words.
MemoryMinimum MinimumMemory(const ModelSpec& model, const offload::ShardLayout& layout,
                            const config::Config& config);

}  // namespace penstock::zero
