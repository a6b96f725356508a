// Everything about a training that can be decided before anything is created: model, config, data,
// shapes, number of steps, memory. All that a user can get wrong ends here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "train/budget.h"
#include "train/data.h"
#include "train/gpt2.h"
#include "train/model_config.h"
#include "train/trainer.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/model.h"
#include "zero/partitioner.h"

namespace penstock::train {

struct TrainJob {
  ModelSource model;
  zero::Config config;  ///< thread counts and memory limits are set
  zero::ModelSpec spec;
  zero::TensorSource weights;  ///< loaded or initialised; none where a commit has them
  Gpt2Shape shape;
  BatchReader data;
  std::string data_path;  ///< absolute
  uint64_t data_fingerprint = 0;
  uint64_t last_step = 0;
  device::Kind device = device::Kind::kCpu;
  MemoryNeeds needs;
  MemoryBudget budget;

  offload::ShardLayout layout() const { return zero::MakeLayout(spec, config); }
};

/// Reads and checks what `options` name; seed and order are given. Logs what the user should know.
/// `from`: the commit that training goes on from, which has the weights, and the thread count where
/// the config leaves it open.
Result<TrainJob> PrepareJob(const TrainOptions& options, const zero::TrainState* from = nullptr);

/// Looks up an environment variable; none where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Refuses an environment that asks for several ranks (torchrun, mpirun of Open MPI, MPICH and
/// MVAPICH, srun, flux, PMIx): kInvalidArgument.
Status CheckOneRank(const Environment& environment);

/// Steps of one epoch: rows / (rows of a step). Errors: kInvalidArgument where that is none.
Result<uint64_t> EpochSteps(uint64_t rows, uint64_t rows_per_step);

/// Fills in thread counts that the config leaves to the program, for this machine
/// (zero/thread_plan.h).
void ChooseThreads(device::Kind kind, zero::Config* config);

}  // namespace penstock::train
