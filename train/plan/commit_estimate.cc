#include "train/plan/commit_estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "offload/tile_spread.h"
#include "train/plan/step_floors.h"
#include "zero/plan/step_decision.h"

namespace penstock::train {
namespace {

/// Of a layer's computation in a step, the share that is done when updates begin: all of it, or its
/// forward, which is computed again in backward.
double ShareBeforeUpdates(const config::Config& config) {
  if (zero::IsResident(config)) return 1;
  return zero::StartOfUpdates(config) == zero::UpdateStart::kStepEnd ? 1 : 0.25;
}

/// Whichever of the two comes first.
std::optional<double> StepsApart(const config::Config& config, const std::optional<double>& step) {
  std::optional<double> steps;
  if (config.commit_every_steps > 0) steps = static_cast<double>(config.commit_every_steps);
  if (config.commit_every_seconds > 0 && step) {
    const double of_time = std::max(1.0, std::ceil(config.commit_every_seconds / *step));
    steps = std::min(steps.value_or(of_time), of_time);
  }
  return steps;
}

/// All states that are not on the drive already: those that live elsewhere, and tiles that host
/// memory has room for. Frozen ones are written once.
Bytes CommitBytes(const PlannedTraining& training, const offload::ShardLayout& layout,
                  const offload::TileStoreOptions& store) {
  const bool resident = zero::IsResident(training.config);
  const std::vector<offload::TileId> tiles = offload::HostTileOrder(layout);
  Bytes bytes;
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (layout.frozen(tiles[i])) continue;
    const bool all = resident || i < store.host_tiles;
    if (all || store.weight_home != Tier::kNvme) bytes += layout.WeightBytes(tiles[i]);
    if (all || store.record_home != Tier::kNvme) bytes += layout.RecordBytes(tiles[i]);
  }
  return bytes;
}

}  // namespace

CommitEstimate EstimateCommits(const PlannedTraining& training, const offload::ShardLayout& layout,
                               const zero::MemoryPlan& memory, const MachineSpeed& speed,
                               const StepEstimate& step) {
  CommitEstimate commit{.bytes = CommitBytes(training, layout, memory.store)};
  commit.steps_apart = StepsApart(training.config, step.step_s);
  commit.seconds = DriveTime(0, static_cast<double>(commit.bytes.value), speed.drive);
  commit.verification = memory.verification;
  if (commit.verification.on) commit.verified = commit.verification.read;
  commit.verify_s = DriveTime(static_cast<double>(commit.verified.value), 0, speed.drive);
  if (!step.step_s || !commit.seconds || !commit.verify_s) return commit;
  const double idle = std::max(0.0, *step.step_s - step.floors.drive.value_or(0));
  const double hidden = std::min(idle, *step.floors.compute * ShareBeforeUpdates(training.config));
  const double wait = std::max(0.0, *commit.seconds + *commit.verify_s - hidden);
  commit.wait_s = commit.steps_apart ? wait / *commit.steps_apart : 0;
  return commit;
}

}  // namespace penstock::train
