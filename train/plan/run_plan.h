// What a training takes and moves: memory by class, files, bytes and time of a step. From its
// configuration alone, before anything is created.
//
// Bytes are exactly those that the run will take (tests/e2e/plan_test.py). Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "train/plan/budget.h"
#include "train/plan/commit_estimate.h"
#include "train/plan/machine_speed.h"
#include "train/plan/model_cost.h"
#include "train/plan/step_estimate.h"
#include "zero/engine/memory_plan.h"

namespace penstock::train {

/// What there is for a training. Nothing: it is not known.
struct MemoryLimits {
  std::optional<Bytes> device;
  std::optional<Bytes> host;
  std::optional<Bytes> drive;  ///< free space of nvme_path for this rank's files, in all paths
};

/// Memory or space that is missing.
struct Shortage {
  std::string tier;  ///< "device", "host", "drive"
  Bytes needed;      ///< the least that works
  Bytes limit;
  std::string sum;  ///< where `needed` comes from, in words
};

/// Of one rank, the one with the largest share.
struct RunPlan {
  ModelCost cost;
  uint64_t tokens = 0;  ///< of a step, of all ranks
  MemoryNeeds needs;
  MemoryLimits limits;
  std::vector<Shortage> shortages;
  // With shortages, the least that works.
  zero::DeviceBytes device;
  zero::HostBytes host;
  Bytes state_files;                 ///< of this rank
  std::optional<StepEstimate> step;  ///< none if it does not fit; its time has commits in it
  CommitEstimate commit;

  bool fits() const { return shortages.empty(); }
  Bytes device_peak() const { return device.total() + needs.reserved.device(); }
  Bytes host_peak() const { return host.total() + needs.reserved.host(); }
};

/// Plans. Memory above the minimum is spent as the engine spends it; a limit that is not known is
/// no limit for what the training needs, and the minimum is planned for. Precondition: the model
/// has an order of use, as those of all families do. Errors: those of SumMemoryNeeds.
Result<RunPlan> PlanRun(const PlannedTraining& training, const MemoryLimits& limits,
                        const MachineSpeed& speed);

/// The same if it fits. Otherwise nothing is planned, which is much sooner done.
Result<std::optional<RunPlan>> PlanIfFits(const PlannedTraining& training,
                                          const MemoryLimits& limits, const MachineSpeed& speed);

}  // namespace penstock::train
