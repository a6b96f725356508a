#include "train/plan/run_plan.h"

#include <algorithm>
#include <utility>

#include "offload/state_format.h"
#include "zero/plan/partitioner.h"

namespace penstock::train {
namespace {

void AddShortage(std::string tier, Bytes needed, const std::optional<Bytes>& limit, std::string sum,
                 RunPlan& plan) {
  if (!limit || needed <= *limit) return;
  plan.shortages.push_back(
      {.tier = std::move(tier), .needed = needed, .limit = *limit, .sum = std::move(sum)});
}

/// What the engine gets of a limit; of the minimum, if that is more, so that a plan says what a
/// machine would do that had it.
Bytes ForEngine(const std::optional<Bytes>& limit, Bytes minimum, Bytes reserved) {
  return std::max(limit.value_or(minimum), minimum) - reserved;
}

/// With what is missing, and nothing else planned.
Result<RunPlan> BeginPlan(const PlannedTraining& training, const MemoryLimits& limits) {
  RunPlan plan{.limits = limits};
  PENSTOCK_ASSIGN(plan.needs, SumMemoryNeeds(training));
  const MemoryNeeds& needs = plan.needs;
  AddShortage("device", needs.device_minimum, limits.device, needs.device_sum, plan);
  AddShortage("host", needs.host_minimum, limits.host, needs.host_sum, plan);
  return plan;
}

Status CompletePlan(const PlannedTraining& training, const offload::ShardLayout& layout,
                    const MachineSpeed& speed, RunPlan& plan) {
  const zero::ModelSpec& spec = training.spec;
  const config::Config& config = training.config;
  const MemoryNeeds& needs = plan.needs;
  const MemoryLimits& limits = plan.limits;
  plan.cost = CostOf(training.model, spec, training.shape.sequence);
  plan.tokens = training.shape.micro_batch * training.shape.micro_batches *
                training.shape.sequence * training.shape.ranks;
  PENSTOCK_ASSIGN(
      const zero::MemoryPlan memory,
      zero::PlanMemory(spec, layout, config,
                       ForEngine(limits.device, needs.device_minimum, needs.reserved.device()),
                       ForEngine(limits.host, needs.host_minimum, needs.reserved.host())));
  plan.device = zero::DeviceNeed(spec, layout, config, memory);
  plan.host = zero::HostNeed(layout, config, memory);
  plan.step = EstimateStep(training, layout, memory, speed);
  plan.commit =
      EstimateCommits(training, layout, memory, speed, plan.step.value_or(StepEstimate()));
  if (plan.commit.wait_s) *plan.step->step_s += *plan.commit.wait_s;
  return {};
}

/// Adds the files, whose size is known from the layout. Several paths share the tiles; how they do
/// it moves no more than a tile.
void AddFiles(const PlannedTraining& training, const offload::ShardLayout& layout, RunPlan& plan) {
  const config::Config& config = training.config;
  plan.state_files = offload::StateFileBytes(layout, config.durable ? 2 : 1,
                                             std::max<size_t>(1, config.nvme_paths.size()));
  // Without a path the files lie in RUN, whose drive is not known.
  if (config.nvme_paths.empty()) return;
  AddShortage("drive", plan.state_files, plan.limits.drive, "state files", plan);
}

}  // namespace

Result<RunPlan> PlanRun(const PlannedTraining& training, const MemoryLimits& limits,
                        const MachineSpeed& speed) {
  PENSTOCK_ASSIGN(RunPlan plan, BeginPlan(training, limits));
  const offload::ShardLayout layout =
      zero::MakeLayout(training.spec, training.config, training.world);
  AddFiles(training, layout, plan);
  PENSTOCK_TRY(CompletePlan(training, layout, speed, plan));
  return plan;
}

Result<std::optional<RunPlan>> PlanIfFits(const PlannedTraining& training,
                                          const MemoryLimits& limits, const MachineSpeed& speed) {
  PENSTOCK_ASSIGN(RunPlan plan, BeginPlan(training, limits));
  if (!plan.fits()) return std::optional<RunPlan>();
  const offload::ShardLayout layout =
      zero::MakeLayout(training.spec, training.config, training.world);
  AddFiles(training, layout, plan);
  if (!plan.fits()) return std::optional<RunPlan>();
  PENSTOCK_TRY(CompletePlan(training, layout, speed, plan));
  return std::optional(std::move(plan));
}

}  // namespace penstock::train
