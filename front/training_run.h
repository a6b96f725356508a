// A run of the C interface (front/penstock.h): begins or resumes a training in it, and names the
// training's commits in run.json.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "front/commit_text.h"
#include "front/run_text.h"
#include "front/training.h"
#include "run/held_run.h"

namespace penstock::front {

class TrainingRun {
 public:
  /// `program`: the version of this library. Errors: of HeldRun::Open.
  static Result<std::unique_ptr<TrainingRun>> Open(const std::string& options,
                                                   const std::string& program);

  /// Begins the run's training, or resumes it from the run's last commit or that of a snapshot. The
  /// texts are those of penstock_create_in. Errors: kInvalidArgument if the run has a training;
  /// those of CallersPart and Training::Create. After an error the run is unchanged.
  Result<std::unique_ptr<Training>> Create(const std::string& config, const std::string& model,
                                           const std::string& options);
  /// Says that the training has ended.
  void Left() { has_training_ = false; }

  // For the training that Create has made.

  /// `caller`: a JSON object that the commit keeps.
  Status BeginCommit(Training& training, std::string caller);
  /// Waits for the commit that was begun, if any, and names it in run.json.
  Status FinishCommit(Training& training);
  /// Has run.json name the newest commit, if there is one; for what has waited for it already.
  Status NoteCommit(Training& training);
  /// Takes the snapshots that other programs have asked for, if there are any; see SnapshotAnswers.
  void AnswerRequests(Training& training) { training.AnswerRequests(run_.info()); }
  /// Copies the last commit: to RUN/snapshots if `name` has no slash, else to a path. Returns
  /// where.
  Result<std::string> Snapshot(Training& training, const std::string& name);
  /// The caller's part of the commit from which the training resumes; none if it is new.
  const std::optional<std::string>& continued() const { return continued_; }

  std::string Describe();
  /// HeldRun::Close.
  Status Close() { return run_.Close(); }

 private:
  explicit TrainingRun(train::HeldRun run) : run_(std::move(run)) {}
  Result<Plan> PlanOf(const std::string& config, const std::string& model,
                      const std::string& options);
  Status CheckCommit(const zero::CommittedState& commit, const std::string& uuid);
  Status PlaceNewFiles(zero::EngineOptions& engine);
  Result<std::string> CopyTo(Training& training, const offload::WholeState& state,
                             const std::string& path);
  Status Note(Training& training);
  Status RemoveDoubt();
  Status WatchRun(Training& training);
  Status WatchOwnWrites(Training& training);
  Status LogSteps(Training& training);
  Status NoteRowsTaken(Training& training);

  train::HeldRun run_;
  bool has_training_ = false;
  Identity identity_;
  std::optional<std::string> rows_from_;  ///< the snapshot from whose commit the training resumes
  std::optional<std::string> continued_;
  std::string uuid_before_;  ///< of the state that had the newest commit; empty: there is none
  uint64_t watched_ = 0;     ///< HeldRun::writes of the run.json that the training watches
};

}  // namespace penstock::front
