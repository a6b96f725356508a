// `penstock plan`: what a training will take and how long its steps will be, from model and
// configuration alone (docs/plan.md).
//
// Threads: the main thread, while nothing else computes: speeds that are not given are measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "sizing/drive_wear.h"
#include "train/plan/choose.h"
#include "train/plan/planned_speed.h"
#include "train/plan/setup.h"

namespace penstock::train {

struct PlanCommand {
  std::string model;  ///< as of train, or a name with shape (sizing/model_shape.h)
  std::vector<std::string> configs;
  DeviceChoice device = DeviceChoice::kAuto;
  uint32_t ranks = 1;
  uint32_t nodes = 1;  ///< divides the ranks
  std::optional<Bytes> device_memory = {};
  std::optional<Bytes> host_memory = {};
  /// What the drives of a node have for state files; none: what is free here.
  std::optional<Bytes> drive_capacity = {};
  std::optional<uint64_t> sequence_length = {};
  config::AutoFlags auto_flags = {};  ///< what "auto" in the config means
  GivenSpeed speed = {};
  double training_tokens = 0;  ///< of the whole training; 0: its duration is not asked for
  std::optional<DriveRating> rating = {};
  std::optional<PlanGoal> choose = {};
  bool as_deepspeed = false;  ///< DeepSpeed's estimates instead; no config is needed
  /// Topologies of a cluster instead: those of a file (CSV), or if it is empty all that so many
  /// ranks can have. Needs a model with shape.
  std::optional<std::string> topologies = {};
  uint64_t global_batch = 0;                   ///< of the topologies, in samples; 0: the config's
  std::vector<uint64_t> tensor_parallel = {};  ///< the shares of so many GPUs instead
  bool json = false;
};

/// Returns the output for stdout. Errors: kInvalidArgument for what `train` would refuse too; of
/// the machine, if limits are not given and cannot be read.
Result<std::string> MakePlanReport(const PlanCommand& command);

}  // namespace penstock::train
