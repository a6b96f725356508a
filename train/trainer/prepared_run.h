// Prepares a run up to its first step: reads and checks the user's input, opens RUN, and makes or
// resumes the state.
//
// With several ranks, each prepares its part, and either all or none begin the next stage. Only
// rank 0 opens RUN.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/rows/csv_monitor.h"
#include "run/rows/metrics_file.h"
#include "run/run_folder.h"
#include "train/models/registry.h"
#include "train/process/interrupt.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"
#include "train/trainer/trainer_job.h"
#include "train/trainer/trainer_machine.h"

namespace penstock::train {

/// The notices of the first Ctrl-C: of a training, and of a replay.
inline constexpr const char* kInterruptNotice =
    "penstock: finishing this step and committing; interrupt again to quit at once";
inline constexpr const char* kReplayInterruptNotice =
    "penstock: ending the replay after this step; interrupt again to quit at once";

/// A run before its first step, or before the first after a commit. Members are destroyed last to
/// first: members that use RUN end before RUN is released.
struct PreparedRun {
  std::optional<RunFolder> folder;  ///< on rank 0
  TrainOptions options;             ///< seed, order and sequence length are given
  TrainJob job;
  std::unique_ptr<Interrupt> interrupt;
  RunInfo info;             ///< names the state
  bool has_commit = false;  ///< run.json names the state as well
  Machine machine;
  std::optional<MetricsWriter> rows;    ///< on rank 0
  std::optional<CsvMonitor> monitor;    ///< on rank 0, if the run has one
  std::string identity;                 ///< kept by every commit (run/identity/run_identity.h)
  uint64_t consumed_samples = 0;        ///< samples of all earlier steps
  bool keeps_consumed_samples = false;  ///< whether each commit keeps them
  std::vector<std::string> changed;     ///< keys whose values change with its first step
};

/// Plans the start (train/trainer/start_plan.h) of a new run, of a replay, or of a run that
/// resumes, and carries it out. Returns nothing if the run is committed up to its last step
/// already. Once something was created, signals end it: kCancelled. After an error a new run leaves
/// nothing behind, and a resumed one still has its commit.
Result<std::optional<PreparedRun>> PrepareRun(const TrainOptions& given, ModelFamilies families,
                                              Ranks& ranks);

}  // namespace penstock::train
