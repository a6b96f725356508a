// Prepares a run up to its first step: reads and checks what the user gave, opens RUN, and makes or
// continues the state.
//
// With several ranks, each prepares its part, and all go on to the next stage or none does. Rank 0
// alone opens RUN.
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

/// A run before its first step, or before the first after a commit. Members are destroyed last to
/// first: what works in RUN ends before RUN is given up.
struct PreparedRun {
  std::optional<RunFolder> folder;  ///< of rank 0
  TrainOptions options;             ///< seed, order and sequence length are given
  TrainJob job;
  std::unique_ptr<Interrupt> interrupt;
  RunInfo info;             ///< names the state
  bool has_commit = false;  ///< run.json names the state as well
  Machine machine;
  std::optional<MetricsWriter> rows;    ///< of rank 0
  std::optional<CsvMonitor> monitor;    ///< of rank 0, if there is one
  std::string identity;                 ///< what every commit keeps (run/identity/run_identity.h)
  uint64_t consumed_samples = 0;        ///< by the steps before
  bool keeps_consumed_samples = false;  ///< in each commit
  std::vector<std::string> changed;     ///< keys that are others from its first step on
};

/// Prepares a new run, or a replay (train/trainer/prepared_replay.h); or, if `given` resumes, one
/// that continues after its last commit. Returns nothing if that is the commit of the last step
/// already. From the moment at which something is created, signals ask it to end: kCancelled. After
/// an error a new run leaves nothing behind, and a resumed one has the commit that it had.
Result<std::optional<PreparedRun>> PrepareRun(const TrainOptions& given, ModelFamilies families,
                                              Ranks& ranks);

}  // namespace penstock::train
