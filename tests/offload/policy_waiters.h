// Threads that wait for an offload::TilePolicy, in tests: they continue only when the policy names
// them, and it is counted how often they waited and how often they were named.
#pragma once

#include <cstdint>

#include "offload/tile_policy.h"

namespace penstock::offload {

/// One that waits, or not.
struct PolicyWaiter {
  bool waiting = false;
  uint64_t waits = 0;
  uint64_t wakes = 0;

  void Wait() {
    waiting = true;
    ++waits;
  }
  void Wake() {
    waiting = false;
    ++wakes;
  }
};

struct PolicyWaiters {
  PolicyWaiter device;
  PolicyWaiter filler;
  PolicyWaiter settling;
  uint64_t updates_announced = 0;
  uint64_t updates_taken = 0;

  void Wake(const TileWakes& wakes) {
    if (wakes.device) device.Wake();
    if (wakes.filling) filler.Wake();
    if (wakes.settled) settling.Wake();
    updates_announced += wakes.updates;
  }
  /// Whether an update was announced that was not taken yet.
  bool may_update() const { return updates_announced > updates_taken; }
};

}  // namespace penstock::offload
