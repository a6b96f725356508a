// Makes the parts that a training runs on: the state's location, and the device, model and engine.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "base/trace.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "kernels/state/state_operators.h"
#include "offload/uuid.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/models/checked_operators.h"
#include "train/models/model.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"
#include "train/trainer/trainer_job.h"
#include "zero/session/session.h"

namespace penstock::train {

/// Where the state of a training is.
struct StatePlan {
  std::vector<std::string> folders;  ///< folders of this rank
  offload::Uuid uuid{};
  StateFiles files;        ///< files of all ranks
  bool adopt = false;      ///< the files exist, and training resumes in them
  bool moved = false;      ///< filled from other files, which are removed then
  offload::CommitName at;  ///< the commit to resume from in that case
};

// Collective: every rank calls these.
/// Returns a new state. `run`: the path of the run's folder; `uuid`: the state's.
Result<StatePlan> PlanNewState(const TrainJob& job, const std::string& run,
                               const offload::Uuid& uuid, Ranks& ranks);
/// If all ranks can resume in the files of `from`, closes them, so that the engines can open them,
/// and returns them; else returns a new state, `uuid`.
Result<StatePlan> PlanStateAfter(ResumePoint& from, const TrainJob& job, const std::string& run,
                                 const offload::Uuid& uuid, Ranks& ranks);

/// The parts that a step runs on. Members are destroyed last to first: the session finishes its
/// work while the others still exist.
struct Machine {
  std::unique_ptr<Trace> trace;  ///< or none
  std::unique_ptr<ActivityMeter> meter;
  Bytes library_memory;  ///< GPU memory outside the device's arena: NCCL's
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::Communicator> communicator;  ///< to the other ranks, if there are any
  std::unique_ptr<kernels::ModelOperators> operators;
  std::unique_ptr<CheckedOperators> checked;  ///< the same, as the model calls them
  std::unique_ptr<Model> model;
  std::unique_ptr<kernels::StateOperators> state_operators;
  std::unique_ptr<zero::Session> session;
};

/// Collective. Errors: those of the parts; of Trace::Create, if `given` asks for a trace. An error
/// of a single rank ends all ranks (Ranks::End). `session_number`: the same on all ranks, and
/// different for each start of the run.
Result<Machine> CreateMachine(const TrainOptions& given, const TrainJob& job,
                              const StatePlan& state, Ranks& ranks, uint64_t session_number);

}  // namespace penstock::train
