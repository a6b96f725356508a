#include "run/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "offload/whole_commit.h"
#include "run/commit_rows.h"
#include "run/committed_run.h"
#include "run/doubted_commit.h"
#include "run/leftovers.h"
#include "run/moved_run.h"
#include "run/snapshot.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Of each rank, to the others.
constexpr size_t kMaxDamagesTold = 4;

/// The commit from which a training should continue, for messages.
struct Origin {
  const Folder& folder;
  const std::optional<std::string>& snapshot;

  std::string Option() const { return snapshot ? "--resume-from " + *snapshot : "--resume"; }
  const char* Instead() const {
    return snapshot ? "resume from another snapshot, or from the run's last commit with --resume"
                    : "start a new run";
  }
};

/// `is_run`: what clean removes; anything else may be somebody's.
Error NothingToResume(const Origin& origin, const std::string& why, bool is_run) {
  return MakeError(ErrorCode::kInvalidArgument, "{}: there is no commit in {}: {}; {}{}",
                   origin.Option(), origin.folder.path(), why,
                   is_run ? "remove it (penstock clean) and " : "", origin.Instead());
}

Error NoCommitYet(const Origin& origin) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "{}: there is no commit in {}: it ended before its first one; penstock train "
                   "without {} begins it anew in the same folder, and penstock clean removes it",
                   origin.Option(), origin.folder.path(), origin.Option());
}

Error NoSuchSnapshot(const Folder& run, const std::string& name) {
  const std::vector<std::string> there = Snapshots(run);
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume-from {}: {} has no snapshot of that name; {}", name, run.path(),
                   there.empty() ? "it has none; resume from its last commit with --resume"
                                 : fmt::format("it has {}", fmt::join(there, ", ")));
}

/// Whether no file exists: the run ended before its first commit, or its drive is not mounted.
bool NothingIsThere(const std::vector<std::string>& paths) {
  std::error_code ignored;
  return std::ranges::none_of(paths, [&](const auto& path) { return fs::exists(path, ignored); });
}

/// Whether the run has no rows, and so never finished its first step. A snapshot did.
bool EndedBeforeItsRows(const Origin& origin) {
  const Result<bool> rows = HasRows(origin.folder);
  return !origin.snapshot && rows.ok() && !*rows;
}

/// Whether the state that could not be opened is known to hold no commit. One that is damaged is
/// not: what is left of it may be what somebody needs.
bool HasNoCommit(const Origin& origin, const StateFiles& files, const Error& error) {
  std::error_code ignored;
  // The first file says so itself; with several ranks, one of them that holds none is enough.
  if (error.code == ErrorCode::kNotFound) {
    return files.ranks.size() > 1 || fs::exists(files.first(), ignored);
  }
  // The run ended between the creation of a rank's first file and its first byte.
  return error.code == ErrorCode::kCorruption && EndedBeforeItsRows(origin) &&
         std::ranges::any_of(files.ranks, [&](const RankFiles& rank) {
           return fs::file_size(rank.paths.front(), ignored) == 0;
         });
}

using OpenState =
    std::function<Result<std::unique_ptr<zero::CommittedState>>(const StateFiles& files)>;

OpenState WithLock(offload::StateLock lock) {
  return [lock](const StateFiles& files) { return OpenFiles(files, lock); };
}

Result<ResumePoint> OpenCommit(const Origin& origin, const OpenState& open, const Notify& notify) {
  ResumePoint point{.notify = notify};
  Result<RunInfo> info = ReadRunInfo(origin.folder);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) {
    const Result<bool> left = EndedAtItsBeginning(origin.folder);
    return NothingToResume(origin, "it has no run.json", left.ok() && *left);
  }
  PENSTOCK_TRY(info.status());
  point.info = *std::move(info);
  PENSTOCK_TRY(CheckIsOfTrain(
      point.info, origin.folder.path(),
      fmt::format("its own program resumes it, with run=\"{}\"", origin.folder.path())));
  PENSTOCK_TRY(TakeUnnamedCommit(&point.info));
  if (!point.info.state) return NoCommitYet(origin);
  const StateFiles& files = *point.info.state;
  auto state = open(files);
  const bool nothing = !state.ok() && NothingIsThere(files.all());
  if (nothing && EndedBeforeItsRows(origin)) {
    return NothingToResume(
        origin,
        fmt::format("it has neither rows nor a state ({}; mount its drive if it is not mounted)",
                    files.first()),
        true);
  }
  if (!state.ok() && !nothing && HasNoCommit(origin, files, state.error())) {
    return NothingToResume(origin, state.error().message, true);
  }
  if (nothing) {
    return MakeError(ErrorCode::kNotFound,
                     "{}: the state of {} is not there ({}); mount its drive if it is not "
                     "mounted; a run that ended before its first commit has none: remove it "
                     "(penstock clean) and {}",
                     origin.Option(), origin.folder.path(), files.first(), origin.Instead());
  }
  PENSTOCK_TRY(state.status());
  point.state = *std::move(state);
  if (!point.state->notice().empty()) notify(point.state->notice());
  return point;
}

/// Reads what the commit in use says, which goes with the rows in `rows`.
Status ReadCommit(ResumePoint& point, const Folder& rows) {
  point.train = point.state->train_state();
  PENSTOCK_ASSIGN(CommitTexts texts, ReadCommitTexts(point.train.run_json, point.train.step,
                                                     point.info.state->first()));
  PENSTOCK_TRY(CheckStateOf(point.info, point.state->uuid()));
  // Rows that are to be replaced need not hold.
  if (!point.info.rows_from) PENSTOCK_TRY(CheckRows(rows, point.train.step));
  point.identity = std::move(texts.identity);
  point.row = std::move(texts.row);
  point.consumed_samples = texts.consumed_samples;
  return {};
}

/// ReadCommit, with the rows of what `point` is of.
Status ReadCommitOf(ResumePoint& point, const Folder& run) {
  if (!point.replaced) return ReadCommit(point, run);
  PENSTOCK_ASSIGN(const Folder snapshot, OpenSnapshot(run, point.snapshot));
  return ReadCommit(point, snapshot);
}

/// The damages of the commit in use, as all ranks found them in their shares.
Result<std::vector<std::string>> DamagesOfAll(const zero::CommittedState& state,
                                              const TogetherWith& others) {
  const Result<std::vector<std::string>> mine =
      state.DamagedTiles(others.progress, others.rank, others.ranks);
  PENSTOCK_TRY(others.agree(mine.status()));
  PENSTOCK_ASSIGN(
      const std::vector<std::string> all,
      others.gather(nlohmann::json(std::span(*mine).first(std::min(mine->size(), kMaxDamagesTold)))
                        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  std::vector<std::string> damages;
  for (const std::string& text : all) {
    const auto of_rank = nlohmann::json::parse(text).get<std::vector<std::string>>();
    damages.insert(damages.end(), of_rank.begin(), of_rank.end());
  }
  return damages;
}

/// The step of the commit that rank 0 knows to be in doubt.
Result<std::optional<uint64_t>> DoubtOfAll(const ResumePoint& point, const Folder& run,
                                           const TogetherWith& others) {
  std::optional<uint64_t> doubted;
  if (!point.replaced) doubted = DoubtedStep(run, point.info.state->uuid);
  PENSTOCK_ASSIGN(const std::vector<std::string> all,
                  others.gather(doubted ? fmt::format("{}", *doubted) : std::string()));
  const Result<uint64_t> step = ParseWhole(all.front());
  return step.ok() ? std::optional(*step) : std::nullopt;
}

/// metrics.jsonl gets the rows of the snapshot that the state was moved back to, which is of
/// `step`.
Status CompleteRows(RunInfo* info, uint64_t step, const RunFolder& folder, const Notify& notify) {
  const std::optional<std::string> from = std::exchange(info->rows_from, std::nullopt);
  return from ? TakeRows(folder.folder(), *from, step, notify) : Status();
}

/// The end of a move. `runs`: the paths that the run has and had.
Status RemoveMoved(RunInfo* info, const RunFolder& folder, const std::vector<std::string>& runs,
                   const Notify& notify) {
  const auto left_behind = [&notify](const std::string& why) {
    notify("a state that was moved is left behind: " + why);
  };
  RemoveLeftovers([&](const StateFiles& state) { return RemoveState(state, runs, left_behind); },
                  info);
  return folder.WriteInfo(*info);
}

}  // namespace

Error NothingToResume(const Folder& run, const std::string& why) {
  const std::optional<std::string> no_snapshot;
  return NothingToResume(Origin{run, no_snapshot}, why, true);
}

std::optional<Error> NothingIfWithoutRows(const Folder& run, const std::string& why) {
  const std::optional<std::string> no_snapshot;
  if (!EndedBeforeItsRows(Origin{run, no_snapshot})) return std::nullopt;
  return NothingToResume(run, why);
}

Result<ResumePoint> OpenResumePoint(const Folder& run, const std::optional<std::string>& snapshot,
                                    const Notify& notify, offload::StateLock lock) {
  if (!snapshot) return OpenCommit({run, snapshot}, WithLock(lock), notify);
  PENSTOCK_TRY(CheckSnapshotName(*snapshot));
  PENSTOCK_ASSIGN(RunInfo current, ReadRunInfo(run));
  const Result<Folder> folder = OpenSnapshot(run, *snapshot);
  if (!folder.ok() && folder.error().code == ErrorCode::kNotFound) {
    return NoSuchSnapshot(run, *snapshot);
  }
  PENSTOCK_TRY(folder.status());
  PENSTOCK_ASSIGN(ResumePoint point, OpenCommit({*folder, snapshot}, WithLock(lock), notify));
  point.replaced = std::move(current);
  point.snapshot = *snapshot;
  return point;
}

Result<ResumePoint> OpenResumePoint(const Folder& run, std::unique_ptr<zero::CommittedShare> share,
                                    const Notify& notify) {
  const std::optional<std::string> no_snapshot;
  const OpenState opened = [&share](const StateFiles&) {
    return Result(std::unique_ptr<zero::CommittedState>(std::move(share)));
  };
  PENSTOCK_ASSIGN(ResumePoint point, OpenCommit({run, no_snapshot}, opened, notify));
  point.own_share = true;
  return point;
}

Status TakeWholeCommit(ResumePoint& point, const Folder& run, const TogetherWith& others) {
  PENSTOCK_ASSIGN(const std::optional<uint64_t> doubted, DoubtOfAll(point, run, others));
  zero::CommittedState& state = *point.state;
  Result<offload::ChosenCommit> chosen = offload::ChooseCommit(
      {.commits = state.commits(),
       .use = [&](const offload::CommitName& name) { return others.agree(state.Use(name)); },
       .damages = [&] { return DamagesOfAll(state, others); },
       .doubted = doubted});
  PENSTOCK_TRY(others.agree(chosen.status()));
  if (!chosen->notice.empty() && others.rank == 0) {
    point.notify(fmt::format("{}: {}", point.info.state->first(), chosen->notice));
  }
  return ReadCommitOf(point, run);
}

Status TakeCommit(ResumePoint& point, const Folder& run, const offload::CommitName& name) {
  PENSTOCK_TRY(point.state->Use(name));
  return ReadCommitOf(point, run);
}

void MarkCopy(ResumePoint& point, const Folder& run, const std::string& run_uuid) {
  point.is_copy = true;
  BecomeOwn(run, run_uuid, &point.current());
}

bool FitsInPlace(const ResumePoint& from, const offload::ShardLayout& layout, bool durable,
                 const std::vector<std::string>& folders) {
  return !from.replaced && !from.is_copy && from.state->world_size() == layout.world_size &&
         zero::FitsInPlace(*from.state, layout, durable, from.info.state->ranks[layout.rank].paths,
                           folders);
}

Status AnnounceMove(const ResumePoint& from, const RunFolder& folder, const StateFiles& target) {
  RunInfo moving = from.current();
  moving.leftovers.push_back(target);
  return folder.WriteInfo(moving);
}

Status ReplaceState(ResumePoint& from, const RunFolder& folder, RunInfo info) {
  const RunInfo& before = from.current();
  TakeLeftovers(before, folder.folder(), from.is_copy, &info);
  const std::vector<std::string> runs = {folder.path(), before.place};
  if (from.replaced) info.rows_from = from.snapshot;
  PENSTOCK_TRY(folder.WriteInfo(info));
  NoteOwner(*info.state, folder.folder(), from.notify);
  // While the snapshot's state is open, no process removes the snapshot.
  PENSTOCK_TRY(CompleteRows(&info, from.train.step, folder, from.notify));
  from.state.reset();
  return RemoveMoved(&info, folder, runs, from.notify);
}

Status NoteChanges(const ResumePoint& from, const RunInfo& now, const RunFolder& folder) {
  RunInfo noted = from.current();
  if (noted.changes == now.changes && noted.skip_steps == now.skip_steps) return {};
  noted.changes = now.changes;
  noted.skip_steps = now.skip_steps;
  return folder.WriteInfo(noted);
}

Status CompleteEarlier(ResumePoint& from, const RunFolder& folder) {
  RunInfo& info = from.current();
  RemoveUnfinishedSnapshots(folder.folder(), info.run_uuid, from.notify);
  const std::vector<std::string> runs = {folder.path(), info.place};
  if (!from.is_copy) {
    info.place = folder.path();
    if (info.state) NoteOwner(*info.state, folder.folder(), from.notify);
  }
  PENSTOCK_TRY(CompleteRows(&info, from.train.step, folder, from.notify));
  return RemoveMoved(&info, folder, runs, from.notify);
}

}  // namespace penstock::train
