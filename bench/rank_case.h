// What a rank of several trains in bench/ranks, and what bounds its step: a model of equal layers
// and a head, whose kernels take a given time, with all states on a drive.
//
// Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "comm/world.h"
#include "config/config.h"
#include "offload/schedule.h"
#include "sim/drive.h"
#include "sim/link.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/schedule_builder.h"

namespace penstock::bench {

struct RankModel {
  uint64_t layers = 24;
  uint64_t layer_elements = uint64_t{1} << 18;
  uint64_t micro_batches = 1;  ///< micro-batches of a rank in a step
  double compute_s = 1;        ///< seconds of a step, backward twice as long as forward
};

/// The model's modules and uses. A use of the head counts as one of a layer forward.
zero::ModelSpec SpecOf(const RankModel& model);
/// Returns the seconds that each use in the step computes.
std::vector<double> ComputeOf(const RankModel& model, const zero::ModelSpec& spec);

struct RankCase {
  RankModel model;
  uint32_t ranks = 2;
  uint32_t slots = 2;  ///< slots for layers on the device
  uint64_t tile_elements = uint64_t{1} << 16;
  Bytes host_memory = 1_GiB;  ///< memory of a rank
  int optimizer_threads = 1;  ///< threads of a rank, each on its own core
  sim::DriveSpeed drive;      ///< drive of a rank
  sim::LinkSpeed link;        ///< link of a rank
};

/// bf16, clipping and the check for overflow, and so updates that wait for all gradients; no tile
/// at home in host memory.
config::Config ConfigOf(const RankCase& rank_case);

/// What the engine of rank 0, which has the largest share, plans.
struct RankPlan {
  zero::ModelSpec spec;
  offload::ShardLayout layout;
  zero::MemoryPlan memory;
  offload::Schedule schedule;
  Bytes device_memory;
};
/// Errors: kBudget if the host memory is too small.
Result<RankPlan> PlanOf(const RankCase& rank_case);

/// What a rank's drive moves in a step.
struct DriveBytes {
  double read = 0;
  double written = 0;
};

/// Seconds that a step keeps each resource of a rank busy.
struct ResourceTimes {
  double compute_s = 0;
  double drive_s = 0;
  double link_s = 0;
  double phases_s = 0;  ///< forward and backward, each with its own part of compute and link
  double floor_s() const;
  const char* bound() const;  ///< the name of the slowest
};
ResourceTimes TimesOf(const RankCase& rank_case, const RankPlan& plan, const DriveBytes& bytes);

/// Returns the bytes that a rank sends in a step, without losses and norm.
double LinkBytes(const RankPlan& plan, uint64_t micro_batches);
/// Returns what its drive moves if nothing stays in host memory.
DriveBytes MostDriveBytes(const RankPlan& plan);

}  // namespace penstock::bench
