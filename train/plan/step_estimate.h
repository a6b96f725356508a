// The bytes that a step moves and the time that it takes: floors by resource, and the step that
// sim/ predicts with the engine's own schedule and policy.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "offload/layout.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"
#include "zero/engine/memory_plan.h"

namespace penstock::train {

/// Seconds that each resource is busy in a step. Nothing: its speed is not known.
struct StepFloors {
  std::optional<double> compute;
  std::optional<double> drive;   ///< zero where the step moves nothing on it
  std::optional<double> update;  ///< of all optimizer threads together
  std::optional<double> copies;  ///< between device and host
  std::optional<double> link;    ///< between ranks
};

struct StepEstimate {
  uint64_t read_bytes = 0;  ///< nvme, of this rank
  uint64_t write_bytes = 0;
  uint64_t to_device_bytes = 0;
  uint64_t to_host_bytes = 0;
  uint64_t link_bytes = 0;        ///< sent by this rank
  uint64_t fixed_link_bytes = 0;  ///< of these, what does not grow with the batch
  StepFloors floors;
  /// The least that a step can take, and what it takes. Nothing: compute or drive is not known.
  std::optional<double> floor_s;
  std::optional<double> step_s;
  std::string bound_by;  ///< "compute", "drive", "optimizer", "copies", "link"; empty: not known
};

/// Precondition: the plan is that of zero::PlanMemory for the layout.
StepEstimate EstimateStep(const PlannedTraining& training, const offload::ShardLayout& layout,
                          const zero::MemoryPlan& memory, const MachineSpeed& speed);

}  // namespace penstock::train
