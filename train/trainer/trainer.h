// A whole training: from the names on the command line to the summary.
//
// Threads: one training at a time, on the main thread (it handles the signals of
// train/process/interrupt.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "config/auto.h"
#include "numerics/replayed_steps.h"
#include "offload/commit_agreement.h"
#include "run/identity/run_changes.h"
#include "run/identity/skipped_steps.h"
#include "train/loop/data.h"
#include "train/loop/metrics_summary.h"
#include "train/models/registry.h"
#include "train/plan/setup.h"

namespace penstock::zero {
struct EngineOptions;
}  // namespace penstock::zero

namespace penstock::train {

/// A run that recomputes steps of another one (train/trainer/replay.h). It begins with a commit of
/// that run, keeps its own state, and ends before its last step.
struct ReplayOptions {
  std::string run;                      ///< the other run; the caller holds its lock
  std::optional<std::string> snapshot;  ///< a snapshot of it; none: its last commit
  offload::CommitName commit;           ///< the commit, which is intact
  bool other_dtype = false;             ///< the dtype is not that of the other run
  uint64_t stop_after = 0;              ///< last step
  bool commits = false;                 ///< ends with a commit, to resume from
  ReplayedSteps* record = nullptr;      ///< gets the values of the steps
};

/// The command line of `penstock train`.
struct TrainOptions {
  std::string model;                 ///< config.json or a folder that holds one
  std::vector<std::string> configs;  ///< later files override key by key
  std::string data;
  std::string out;                ///< RUN; must not exist, or with `resume` hold a commit
  std::optional<uint64_t> steps;  ///< number of the last step; none: one epoch
  std::optional<uint64_t> seed;   ///< none: 0; resuming, the run's
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<Bytes> device_memory;
  std::optional<Bytes> host_memory;
  std::optional<uint64_t> sequence_length;  ///< none: the model's context length, or the run's
  std::optional<DataOrder> data_order;      ///< none: shuffled; resuming, the run's
  bool init_random = false;                 ///< new weights, even if the model has weights
  bool resume = false;
  std::optional<std::string> resume_from;  ///< a snapshot's name: `resume` from that
  config::AutoFlags auto_flags = {};       ///< what "auto" in the config means
  /// Changes of the config, from the next step on; only for a resumed run.
  std::vector<RequestedChange> changes = {};
  std::vector<StepRange> skips = {};         ///< steps to pass over; the same
  std::optional<std::string> trace;          ///< file to write; must not exist
  std::optional<ReplayOptions> replay = {};  ///< not of the command line
  /// Tests may change how the engine is made; not of the command line.
  std::function<void(zero::EngineOptions&)> change_engine = {};

  bool resumes() const { return resume || resume_from.has_value(); }
};

/// Trains, commits, writes RUN/summary.json. After Ctrl-C (train/process/interrupt.h) the current
/// step is finished and committed, and the summary says `interrupted`. A failure before step 0 is
/// committed leaves nothing behind (with one slot, before the end of the first step). After a later
/// one RUN is kept with the rows so far, and the state file as well if a step was committed; the
/// message says which.
///
/// With `resume`, resumes from the last commit (run/resume.h); returns nothing if that is the last
/// step already.
///
/// `families` are those of the models that can be trained.
Result<std::optional<RunSummary>> Train(const TrainOptions& given,
                                        ModelFamilies families = AllModelFamilies());

}  // namespace penstock::train
