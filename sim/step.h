// The engine in virtual time: how long a step takes, for a schedule and a machine.
//
// The engine's own code makes the decisions: the schedule that zero::BuildSchedule computes, and
// offload::TilePolicy with its update queue. The model covers everything that they decide over: the
// thread that feeds the device, the device's streams, the optimizer's threads, the processor's
// cores, the drive, and a rank's link to the others. Small tiles move one by one in the model, and
// several at once in the engine. Commits and activation checkpoints are not in the model.
//
// With several ranks, the one whose layout is given is modelled. The others are assumed to do the
// same at the same time, so that an operation begins when this rank begins it. Rank 0 has the
// largest share. Sums of what arrives, the rounding of gradients, and the exchanges of losses and
// norm, take no time.
//
// Threads: one. Nothing here touches a file, a device or the real clock.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/tile_store.h"
#include "sim/clock.h"
#include "sim/drive.h"
#include "sim/link.h"
#include "zero/plan/exchange_options.h"
#include "zero/plan/gradient_batches.h"
#include "zero/plan/schedule_builder.h"

namespace penstock::sim {

struct Machine {
  double cores = 2;
  /// Threads that compute; 0: the device has a processor of its own, as a GPU has.
  int compute_threads = 2;
  int optimizer_threads = 1;
  Seconds update_element = 0;  ///< seconds of one thread for one element, in each pass
  Seconds norm_element = 0;    ///< the same for block sums
  Seconds copy_byte = 0;       ///< between host and device: of one core, or of the bus
  Seconds io_byte = 0;         ///< seconds of one core for a byte read or written
  DriveSpeed drive;            ///< speed of each drive
  size_t drives = 1;           ///< equal drives; offload/tile_spread.h distributes tiles to them
  LinkSpeed link;              ///< used with several ranks
};

/// A model's step as the engine sees it.
struct StepPlan {
  const offload::ShardLayout& layout;
  const offload::Schedule& schedule;
  /// Each module once, in the order in which gradients are reduced. A module's gradient is reduced
  /// at its last use.
  const std::vector<offload::ModuleId>& gradients;
  zero::UpdateStart updates = zero::UpdateStart::kStepEnd;
  offload::TileStoreOptions store;
  std::vector<Seconds> compute;  ///< seconds of each use on an idle machine
  uint64_t micro_batches = 1;    ///< micro-batches of this rank in a step: equal parts of each use
  zero::ExchangeOptions exchange = {.repeated_buffers = 2};  ///< used with several ranks
  /// What gradients are staged in on the device, on their way to the host.
  Bytes staging = zero::LeastGradientStaging(layout);
};

struct StepTime {
  Seconds step = 0;
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
};

/// Returns the steps of a training that continues after them, each from its start to the start of
/// the next.
std::vector<StepTime> SimulateSteps(const StepPlan& plan, const Machine& machine, uint64_t steps);

}  // namespace penstock::sim
