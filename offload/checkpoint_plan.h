// Plans the places of activation checkpoints during a step, and when each is copied. A plain value,
// computed from the order in which a step writes and reads them; offload/checkpoint_store.h
// executes it.
//
// A checkpoint that stays on the device from its writing to its last reading is never copied. Every
// other checkpoint is copied to the host once it is written, and back as soon as a slot is free for
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace penstock::offload {

/// One writing or reading of a checkpoint by a kernel (or several that belong together).
struct CheckpointAccess {
  uint32_t checkpoint = 0;
  bool write = false;
  uint32_t kernel = 0;  ///< counted from 0 in the order of the step
};

struct CheckpointPlan {
  /// A copy back to the device.
  struct Fetch {
    uint32_t checkpoint = 0;
    uint32_t slot = 0;
  };
  struct Use {
    CheckpointAccess access;
    uint32_t slot = 0;
    bool copy_out = false;  ///< the checkpoint is needed on the host
  };
  std::vector<Use> uses;                    ///< in the order of the accesses
  std::vector<std::vector<Fetch>> fetches;  ///< indexed by kernel: into slots free after it
};

/// Makes the plan. `accesses` are those of a whole step, by kernel; each checkpoint is written
/// once, before it is read. The slot that is given up is that of the checkpoint needed furthest in
/// the future (Belady's MIN); among checkpoints not needed again, the one that is free longest;
/// never one of the same kernel. Precondition: one slot more than any kernel has accesses. Takes
/// O(n log n) for n accesses.
CheckpointPlan PlanCheckpoints(const std::vector<CheckpointAccess>& accesses, uint32_t slots);

/// Returns what the accesses, the plan and its computation take of the heap, at most.
Bytes PlanBytes(uint64_t checkpoints, uint64_t slots, uint64_t accesses, uint64_t kernels);

}  // namespace penstock::offload
