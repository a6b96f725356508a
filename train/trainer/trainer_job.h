// Decides everything about a training that can be decided before anything is created: model,
// config, data, shapes, number of steps, memory. A user's mistakes are found here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "device/device.h"
#include "run/resume.h"
#include "train/loop/data.h"
#include "train/models/model.h"
#include "train/plan/batch_rampup.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"
#include "train/plan/setup.h"
#include "train/trainer/trainer.h"
#include "train/weights/model_config.h"
#include "zero/model.h"
#include "zero/plan/partitioner.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {

/// A rank's place, and its share of the node.
struct RankPlace {
  comm::World world;
  NodeShare share;
};

struct TrainJob {
  ModelSource model;
  config::Config config;  ///< thread counts and memory limits are set
  zero::ModelSpec spec;
  zero::TensorSource weights;  ///< loaded or initialised; none if a commit has them
  BatchShape shape;
  BatchReader data;
  std::string data_path;  ///< absolute
  uint64_t data_fingerprint = 0;
  uint64_t last_step = 0;
  device::Kind device = device::Kind::kCpu;
  comm::World world;
  MemoryNeeds needs;
  MemoryBudget budget;
  /// Speeds for comparing the run with its plan; none if the configuration lacks some, or if the
  /// batch, and so the time of a step, grows.
  std::optional<MachineSpeed> speed = {};

  offload::ShardLayout layout() const { return zero::MakeLayout(spec, config, world); }
  /// It borrows from the job.
  PlannedTraining planned() const {
    return {.spec = spec,
            .model = *model.description,
            .shape = shape,
            .config = config,
            .kind = device,
            .world = world};
  }
};

/// Reads and checks all that `options` name except `out`; seed and order are given. Logs notices
/// for the user. `from`: the commit from which training resumes; it has the weights, the thread
/// count if the config leaves it open, and the values of "auto". `families` are those of the models
/// that can be trained.
Result<TrainJob> PrepareJob(const TrainOptions& options, const ResumePoint* from = nullptr,
                            ModelFamilies families = AllModelFamilies(),
                            const RankPlace& place = {});

/// Reads the config, with what the command line overrides; `from` as of PrepareJob. Errors: of the
/// files; of ParseConfig.
Result<config::Config> ReadConfig(const TrainOptions& options, uint32_t ranks,
                                  const ResumePoint* from = nullptr);

/// Whether the run's JSON files, which are UTF-8, can hold the absolute path of what `option`
/// names. Errors: kInvalidArgument; of AbsolutePath.
Status CheckPath(const std::string& path, const char* option);

/// Returns the whole steps of one epoch. Errors: kInvalidArgument if there is none.
Result<uint64_t> EpochSteps(uint64_t rows, const BatchRampup& rampup);

}  // namespace penstock::train
