#include "front/training_run.h"

#include <utility>

#include "base/files.h"
#include "offload/state_names.h"
#include "offload/uuid.h"
#include "offload/whole_state.h"
#include "run/commit_rows.h"
#include "run/committed_run.h"
#include "run/doubted_commit.h"
#include "run/leftovers.h"
#include "run/rows/csv_monitor.h"
#include "run/run_copy.h"
#include "run/snapshot.h"

namespace penstock::front {
namespace {

train::StateFiles FilesOf(const Training& training) {
  const zero::StatePort& states = training.engine();
  return train::StateFiles::OfOneRank(states.state_paths(), states.state_uuid());
}

/// The files of the commit in a snapshot, or in another run's folder.
Result<train::StateFiles> FilesIn(const std::string& folder) {
  PENSTOCK_ASSIGN(const train::RunInfo info, train::ReadCommittedInfo(folder));
  if (info.state) return *info.state;
  return MakeError(ErrorCode::kInvalidArgument, "{} has no commit; name another snapshot", folder);
}

/// RunInfo::rows_from of a run at `run` that resumes from a snapshot.
Result<std::string> RowsFrom(const std::string& snapshot, const std::string& run) {
  PENSTOCK_ASSIGN(std::string path, CanonicalPath(snapshot));
  const auto [around, name] = SplitPath(path);
  if (around == run + "/snapshots" && train::CheckSnapshotName(name).ok()) return name;
  return path;
}

}  // namespace

Result<std::unique_ptr<TrainingRun>> TrainingRun::Open(const std::string& options,
                                                       const std::string& program) {
  PENSTOCK_ASSIGN(train::RunRequest request, ParseRunRequest(options));
  request.program = program;
  PENSTOCK_ASSIGN(train::HeldRun run, train::HeldRun::Open(request));
  return std::unique_ptr<TrainingRun>(new TrainingRun(std::move(run)));
}

Result<Plan> TrainingRun::PlanOf(const std::string& config, const std::string& model,
                                 const std::string& options) {
  PENSTOCK_ASSIGN(const TrainingInRun own, ParseTrainingInRun(options));
  identity_ = own.identity;
  rows_from_.reset();
  std::optional<train::StateFiles> from = run_.info().state;
  if (own.snapshot) {
    PENSTOCK_ASSIGN(from, FilesIn(*own.snapshot));
    PENSTOCK_ASSIGN(rows_from_, RowsFrom(*own.snapshot, run_.path()));
  }
  if (from) PENSTOCK_TRY(train::CheckIsThere(*from, own.snapshot.value_or(run_.path())));
  const std::optional<std::vector<std::string>> in_place =
      own.snapshot ? std::nullopt : run_.OwnFolders();
  PENSTOCK_ASSIGN(Plan plan,
                  MakePlan(config, model,
                           WithPlaces(own.rest, in_place ? *in_place : run_.state_folders(),
                                      from ? from->all() : std::vector<std::string>())));
  // Before anything is made.
  if (!from) PENSTOCK_TRY(run_.RemoveMadeFiles());
  if (!from) PENSTOCK_TRY(train::CsvMonitor::CheckFree(plan.engine.config));
  plan.in_new_files = !in_place;
  uuid_before_ = run_.info().state ? run_.info().state->uuid : std::string();
  if (!own.snapshot) plan.doubted_step = train::DoubtedStep(run_.folder(), uuid_before_);
  plan.check_commit = [this, uuid = from ? from->uuid : std::string()](
                          const zero::CommittedState& commit) { return CheckCommit(commit, uuid); };
  plan.place_new_files = [this](zero::EngineOptions& engine) { return PlaceNewFiles(engine); };
  return plan;
}

Status TrainingRun::CheckCommit(const zero::CommittedState& commit, const std::string& uuid) {
  if (commit.uuid() != uuid) {
    return MakeError(
        ErrorCode::kCorruption,
        "run.json of {} names the state {}, and its files are of the state {}: another "
        "run's file is in its place, or run.json was changed; put back what was there",
        run_.path(), uuid, commit.uuid());
  }
  PENSTOCK_ASSIGN(continued_, CallersPart(commit.train_state().run_json, identity_, run_.path(),
                                          [&commit] { return commit.ReadCaller(); }));
  return {};
}

/// Names the files of a new state in run.json before they are made.
Status TrainingRun::PlaceNewFiles(zero::EngineOptions& engine) {
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  engine.state_uuid = uuid;
  engine.state_folders = run_.state_folders();
  return run_.Announce(train::StateFiles::OfOneRank(
      offload::StatePathsIn(engine.state_folders, uuid), offload::ToString(uuid)));
}

Result<std::unique_ptr<Training>> TrainingRun::Create(const std::string& config,
                                                      const std::string& model,
                                                      const std::string& options) {
  if (has_training_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "run {} has an engine already; close that one before another is made",
                     run_.path());
  }
  continued_.reset();
  PENSTOCK_ASSIGN(Plan plan, PlanOf(config, model, options));
  Result<std::unique_ptr<Training>> training = Training::Create(std::move(plan));
  Status made = training.status();
  if (made.ok()) made = WatchRun(**training);
  if (made.ok() && continued_) made = Note(**training);
  if (made.ok()) made = RemoveDoubt();
  if (made.ok()) made = LogSteps(**training);
  if (!made.ok()) {
    if (training.ok()) training->reset();  // its files have to be closed to be removed
    static_cast<void>(run_.RemoveLeftovers());
    return made.error();
  }
  has_training_ = true;
  return training;
}

Status TrainingRun::WatchRun(Training& training) {
  PENSTOCK_ASSIGN(FolderWatch watch, run_.Watch());
  training.Watch(std::move(watch), [this, &training] { run_.NoteLost(FilesOf(training)); });
  watched_ = run_.writes();
  return {};
}

/// Our own writes replace the file. A file that another program wrote does not count as ours.
Status TrainingRun::WatchOwnWrites(Training& training) {
  return run_.writes() == watched_ ? Status() : WatchRun(training);
}

/// The commit in doubt is erased, or its state is no longer the run's; or no other is whole, and
/// the next losses decide on it.
Status TrainingRun::RemoveDoubt() {
  const bool noted = train::DoubtedStep(run_.folder(), uuid_before_).has_value();
  return noted ? train::RemoveDoubt(run_.folder()) : Status();
}

/// Has the folder hold what the steps come to.
Status TrainingRun::LogSteps(Training& training) {
  StepLog::Beginning beginning{.step = training.counts().step, .rows_from = run_.info().rows_from};
  if (const std::optional<std::string>& text = training.continued()) {
    beginning.resumes = true;
    beginning.row = train::RowOfCommit(*text);
    beginning.samples = SamplesOfCommit(*text);
  }
  PENSTOCK_ASSIGN(
      std::unique_ptr<StepLog> log,
      StepLog::Open(run_.folder(), training.session(), training.config(), training.scales_loss(),
                    std::move(beginning), [this, &training](const auto& files) -> Status {
                      PENSTOCK_TRY(run_.NoteMadeFiles(files));
                      return WatchOwnWrites(training);
                    }));
  if (!log->rows_are_off()) PENSTOCK_TRY(NoteRowsTaken(training));
  training.Log(std::move(log));
  training.AnswerBy(std::make_unique<SnapshotAnswers>(run_.folder(), training.config().durable));
  return {};
}

/// Rows that could not be taken are taken by the next resume.
Status TrainingRun::NoteRowsTaken(Training& training) {
  PENSTOCK_TRY(run_.NoteRowsTaken());
  return WatchOwnWrites(training);
}

Status TrainingRun::NoteCommit(Training& training) {
  return training.committed() ? Note(training) : Status();
}

/// Names the state of a training with a durable commit in run.json.
Status TrainingRun::Note(Training& training) {
  Status noted = run_.NoteCommit(FilesOf(training), rows_from_);
  PENSTOCK_TRY(WatchOwnWrites(training));
  return noted;
}

Status TrainingRun::BeginCommit(Training& training, std::string caller) {
  PENSTOCK_ASSIGN(CommitText commit,
                  MakeCommitText(identity_, std::move(caller), training.RowToCommit(),
                                 training.SamplesToCommit()));
  PENSTOCK_TRY(FinishCommit(training));
  return training.BeginCommit(std::move(commit.text), std::move(commit.caller_file));
}

Status TrainingRun::FinishCommit(Training& training) {
  PENSTOCK_TRY(training.FinishCommit());
  return NoteCommit(training);
}

Result<std::string> TrainingRun::Snapshot(Training& training, const std::string& name) {
  PENSTOCK_TRY(FinishCommit(training));
  PENSTOCK_ASSIGN(const offload::WholeState state, training.OpenCommit());
  if (name.find('/') != std::string::npos) return CopyTo(training, state, name);
  PENSTOCK_TRY(train::TakeSnapshot(
      run_.folder(), run_.info(), state, name, [] { return false; },
      [this](const std::string& notice) { run_.AddNotice(notice); }));
  PENSTOCK_ASSIGN(const Folder snapshot, train::OpenSnapshot(run_.folder(), name));
  return snapshot.path();
}

Result<std::string> TrainingRun::CopyTo(Training& training, const offload::WholeState& state,
                                        const std::string& path) {
  PENSTOCK_ASSIGN(const std::string target, CanonicalPath(path));
  run_.NoteCopying(target);
  const Status copied =
      train::CopyRun({run_.folder(), run_.info(), state}, target,
                     [this](const std::string& notice) { run_.AddNotice(notice); });
  run_.NoteCopying(std::nullopt);
  PENSTOCK_TRY(WatchOwnWrites(training));
  if (!copied.ok()) return copied.error();
  return target;
}

std::string TrainingRun::Describe() {
  return DescribeRun(run_.folder(), run_.info(), run_.TakeNotices());
}

}  // namespace penstock::front
