// What a training runs on: where its state is, and the device, model and engine made for it.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "base/trace.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "kernels/state_operators.h"
#include "offload/state_file.h"
#include "train/gpt2.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/trainer.h"
#include "train/trainer_job.h"
#include "zero/engine.h"

namespace penstock::train {

/// Where the state of a training is.
struct StatePlan {
  std::vector<std::string> folders;
  offload::Uuid uuid{};
  StateFiles files;
  bool adopt = false;  ///< the files are there, and training goes on in them
};

/// A new state; or, where the commit of `from` fits in place, its files, which this closes so that
/// the engine can take them over.
Result<StatePlan> PlanState(const TrainJob& job, const RunFolder& folder,
                            std::optional<ResumePoint>& from);

/// What a step runs on. Members are destroyed last to first: the engine finishes its work while
/// what it works on still exists.
struct Machine {
  std::unique_ptr<Trace> trace;  ///< or none
  std::unique_ptr<ActivityMeter> meter;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<kernels::ModelOperators> operators;
  std::unique_ptr<Gpt2> model;
  std::unique_ptr<kernels::StateOperators> state_operators;
  std::unique_ptr<zero::Engine> engine;
};

/// Errors: those of the parts; of Trace::Create, where `given` asks for one.
Result<Machine> CreateMachine(const TrainOptions& given, const TrainJob& job,
                              const StatePlan& state);

}  // namespace penstock::train
