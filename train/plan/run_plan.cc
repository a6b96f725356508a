#include "train/plan/run_plan.h"

#include <algorithm>
#include <utility>

#include "offload/state_format.h"
#include "zero/partitioner.h"

namespace penstock::train {
namespace {

/// All files of this rank's state. Several paths share the tiles; how they do it moves no more than
/// a tile.
void AddShortage(std::string tier, Bytes needed, const std::optional<Bytes>& limit, std::string sum,
                 RunPlan& plan) {
  if (!limit || needed <= *limit) return;
  plan.shortages.push_back(
      {.tier = std::move(tier), .needed = needed, .limit = *limit, .sum = std::move(sum)});
}

/// What the engine gets of a limit; of the minimum, if the training does not fit.
Bytes ForEngine(const std::optional<Bytes>& limit, bool fits, Bytes minimum, Bytes reserved) {
  return (fits && limit ? *limit : minimum) - reserved;
}

/// Written by a commit beside its record: all states that are not on the drive already.
Bytes CommitBytes(const offload::ShardLayout& layout, const zero::MemoryPlan& memory,
                  const config::Config& config) {
  Bytes bytes;
  const bool resident = zero::IsResident(config);
  if (resident || memory.store.weight_home != Tier::kNvme) bytes += layout.weight_bytes();
  if (resident || memory.store.record_home != Tier::kNvme) bytes += layout.record_bytes();
  return bytes;
}

}  // namespace

Result<bool> FitsMemory(const PlannedTraining& training, const MemoryLimits& limits) {
  PENSTOCK_ASSIGN(const MemoryNeeds needs, SumMemoryNeeds(training));
  return (!limits.device || needs.device_minimum <= *limits.device) &&
         (!limits.host || needs.host_minimum <= *limits.host);
}

Result<RunPlan> PlanRun(const PlannedTraining& training, const MemoryLimits& limits,
                        const MachineSpeed& speed) {
  const zero::ModelSpec& spec = training.spec;
  const config::Config& config = training.config;
  RunPlan plan{.limits = limits};
  PENSTOCK_ASSIGN(plan.needs, SumMemoryNeeds(training));
  const MemoryNeeds& needs = plan.needs;
  const offload::ShardLayout layout = zero::MakeLayout(spec, config, training.world);
  const ModelSizes sizes = training.model.sizes();
  plan.cost = {.parameters = layout.model.parameters,
               .layers = sizes.layers,
               .width = sizes.width,
               .sequence = training.shape.sequence};
  plan.tokens = training.shape.micro_batch * training.shape.micro_batches *
                training.shape.sequence * training.shape.ranks;
  plan.state_files = offload::StateFileBytes(layout, config.durable ? 2 : 1,
                                             std::max<size_t>(1, config.nvme_paths.size()));
  AddShortage("device", needs.device_minimum, limits.device, needs.device_sum, plan);
  AddShortage("host", needs.host_minimum, limits.host, needs.host_sum, plan);
  // Without a path the files lie in RUN, whose drive is not known.
  if (!config.nvme_paths.empty()) {
    AddShortage("drive", plan.state_files, limits.drive, "state files", plan);
  }
  PENSTOCK_ASSIGN(
      const zero::MemoryPlan memory,
      zero::PlanMemory(
          spec, layout, config,
          ForEngine(limits.device, plan.fits(), needs.device_minimum, needs.reserved.device()),
          ForEngine(limits.host, plan.fits(), needs.host_minimum, needs.reserved.host())));
  plan.device = zero::DeviceNeed(spec, layout, config, memory);
  plan.host = zero::HostNeed(spec, layout, config, memory.store);
  plan.commit_bytes = CommitBytes(layout, memory, config);
  if (plan.fits()) {
    PENSTOCK_ASSIGN(plan.step, EstimateStep(training, layout, memory, speed));
  }
  return plan;
}

}  // namespace penstock::train
