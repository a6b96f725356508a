// What a start of `penstock train` will do, decided before anything is made or changed: with which
// weights or commit it begins, and with which values. Making a plan takes the lock of a run that
// resumes, and nothing else. train/trainer/prepared_run.h carries it out.
//
// Collective: every rank makes the same plan. Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/uuid.h"
#include "run/identity/run_changes.h"
#include "run/identity/skipped_steps.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/models/registry.h"
#include "train/trainer/ranks.h"
#include "train/trainer/trainer.h"
#include "train/trainer/trainer_job.h"

namespace penstock::train {

/// What rank 0 decides for all.
struct Beginning {
  std::string run;  ///< the path of RUN
  offload::Uuid state{};
  uint64_t session_number = 0;
  bool is_copy = false;  ///< resumes a copy of a run that still exists (run/moved_run.h)
};

struct StartPlan {
  TrainOptions options;  ///< seed, order and sequence length are given
  TrainJob job;
  /// Of a run that resumes; one that begins is made when the plan is carried out.
  Beginning beginning = {};
  std::optional<RunFolder> folder = {};  ///< on rank 0
  std::optional<ResumePoint> from = {};  ///< the commit with which it begins; none: new weights
  uint64_t consumed_samples = 0;         ///< samples of all earlier steps
  bool keeps_consumed_samples = false;   ///< whether each commit keeps them
  std::vector<RunChange> changed = {};   ///< changes with which the run resumes
  std::vector<RunChange> changes = {};   ///< those and all earlier ones
  std::vector<StepRange> skips = {};     ///< all ranges that are or were passed over

  /// Whether it begins with a commit of the run itself. Otherwise a run begins: with new weights,
  /// or as a replay, with a commit of another run.
  bool resumes() const { return options.resumes(); }
  /// Whether the run is committed up to its last step. A copy still gets its own state.
  bool IsDone() const;
  /// Returns the run.json of the run once `state` has its newest commit.
  RunInfo Info(const StateFiles& state) const;
  /// Returns the identity that a commit keeps, by which a later program recognises its run.
  std::string Identity(std::string arithmetic) const;
  /// Returns what is told of a run that resumes: the step, its changes, and what may change the
  /// last bits: ranks, version and arithmetic, which is `now` in this process.
  std::vector<std::string> Notices(const std::string& now) const;
  /// Sets what follows from the changes with which it begins.
  void SetChanges(const std::vector<RunChange>& now);
};

/// Creates RUN on rank 0, or opens it to resume, and tells all ranks. Sets `folder` on rank 0.
Result<Beginning> BeginTogether(const TrainOptions& given, Ranks& ranks,
                                std::optional<RunFolder>& folder);

Result<StartPlan> PlanNew(const TrainOptions& given, ModelFamilies families, Ranks& ranks);
/// From the last commit, or from that of a snapshot.
Result<StartPlan> PlanResume(const TrainOptions& given, ModelFamilies families, Ranks& ranks);
/// Of a new run that begins with a commit of another run, which is unchanged and whose lock the
/// caller has. The home of a state, its tiles and its number of ranks change no bit, so a replay
/// always has one rank and its own folder. Errors: kInvalidArgument if the commit is of a training
/// with other numbers; kOutOfSpace.
Result<StartPlan> PlanReplay(const TrainOptions& given, ModelFamilies families, Ranks& ranks);
/// Refuses a replay on another arithmetic than the run's. Errors: kInvalidArgument.
Status CheckArithmetic(const StartPlan& replay, const std::string& now);

/// Compares the values that must be the same on all ranks before anything is made; from then on the
/// configured timeouts apply.
Status CheckAllAlike(const StartPlan& plan, Ranks& ranks);

// For those that make plans.
/// Returns `options` completed with the values that the run was started with.
TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options);
/// Returns the samples that the steps up to the commit took, of all ranks. Errors: kCorruption if
/// that number is impossible.
Result<uint64_t> ConsumedSamples(const StartPlan& plan);

}  // namespace penstock::train
