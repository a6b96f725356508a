// Resumes from the last commit of a run.
//
// If ranks, tiles, slots and paths are those of the committed state, training continues in its
// files. Otherwise the state is moved: it is filled into new files and committed there; then
// run.json, replaced atomically, names the new files, and the old ones are removed. run.json names
// both while both may exist, so that a kill in between leaves no unknown files.
// A copy of a run that is still there resumes by a move: its state is the original's
// (run/moved_run.h). docs/weights.md has the user's view.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/notify.h"
#include "base/result.h"
#include "run/identity/run_identity.h"
#include "run/run_folder.h"
#include "zero/states/committed_share.h"
#include "zero/states/committed_state.h"

namespace penstock::train {

/// The last commit of a run.
struct ResumePoint {
  RunInfo info;
  /// The open state; no other process can use its files.
  std::unique_ptr<zero::CommittedState> state;
  zero::TrainState train;  ///< of the commit
  std::string identity;    ///< see run/identity/run_identity.h
  std::string row;         ///< of the committed step, as in metrics.jsonl; empty for step 0
  std::optional<uint64_t> consumed_samples;  ///< see run/committed_run.h

  /// The current run.json, if the commit is not the run's last one but a snapshot, which stays.
  std::optional<RunInfo> replaced;
  std::string snapshot;  ///< the snapshot's name in that case
  Notify notify;         ///< gets the notices of a resume
  /// The state is one rank's share, with which that rank can continue and nothing else.
  bool own_share = false;
  /// The run is a copy, and its state the original's.
  bool is_copy = false;

  /// Returns the current run.json.
  const RunInfo& current() const { return replaced ? *replaced : info; }
  RunInfo& current() { return replaced ? *replaced : info; }
};

/// Opens the files of `run`, or those of a snapshot; TakeWholeCommit or TakeCommit must follow. The
/// caller has the run's lock. Ranks that resume together each open all files, with `lock` kShared.
/// Errors: kInvalidArgument if `run` is not a run, or has no commit or no such snapshot;
/// kUnavailable while it is in use; kCorruption.
Result<ResumePoint> OpenResumePoint(const Folder& run, const std::optional<std::string>& snapshot,
                                    const Notify& notify,
                                    offload::StateLock lock = offload::StateLock::kExclusive);

/// The same where a rank has opened its share.
Result<ResumePoint> OpenResumePoint(const Folder& run, std::unique_ptr<zero::CommittedShare> share,
                                    const Notify& notify);

/// How ranks choose a commit together. A single rank needs none of it.
struct TogetherWith {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  /// Returns the failure of the lowest rank that has one.
  std::function<Status(const Status& mine)> agree = [](const Status& mine) { return mine; };
  /// Returns what each rank gives, by rank.
  std::function<Result<std::vector<std::string>>(std::string mine)> gather = [](std::string mine) {
    return Result(std::vector<std::string>{std::move(mine)});
  };
  /// Of this rank's share of each commit that is read.
  offload::CheckProgress progress = offload::kNoProgress;
};

/// Takes the newest commit of `point` that is whole on all ranks (offload/whole_commit.h), each of
/// which reads a share of it; one that is in doubt (run/doubted_commit.h) counts only if
/// no other one is whole. A notice names what was left, and why. `run`: as it was opened. Errors:
/// kCorruption if no commit is whole; of reading.
Status TakeWholeCommit(ResumePoint& point, const Folder& run, const TogetherWith& others = {});
/// Takes a commit that is known to be whole.
Status TakeCommit(ResumePoint& point, const Folder& run, const offload::CommitName& name);

/// Returns the error of a resume where no commit can be, for the reason `why`.
Error NothingToResume(const Folder& run, const std::string& why);
/// Returns that error if the run has no rows, and so never finished its first step; else nothing.
std::optional<Error> NothingIfWithoutRows(const Folder& run, const std::string& why);

/// Has `point` know that its run is a copy, which from now on is called `run_uuid`.
void MarkCopy(ResumePoint& point, const Folder& run, const std::string& run_uuid);

/// Whether it is the run's last commit, and an engine with this layout in these folders can
/// continue in its files: in those of the layout's rank, if there are as many ranks as the layout
/// says. Ranks continue in their files if that is so on all of them.
bool FitsInPlace(const ResumePoint& from, const offload::ShardLayout& layout, bool durable,
                 const std::vector<std::string>& folders);

/// Notes in run.json the files to which the state will be moved, before they are made, so that the
/// next resume knows them however the move ends.
Status AnnounceMove(const ResumePoint& from, const RunFolder& folder, const StateFiles& target);

/// Replaces the run.json of `folder` by `info`, which names the new state, and removes the old
/// files: one process does that, when all ranks have committed the new state and closed the old
/// files.
Status ReplaceState(ResumePoint& from, const RunFolder& folder, RunInfo info);

/// Has the run.json of `folder` say what `now` says of changes and of steps that are passed over,
/// if the state stays in its files.
Status NoteChanges(const ResumePoint& from, const RunInfo& now, const RunFolder& folder);

/// Completes what an earlier process was killed in: removes unfinished snapshots, and completes a
/// move: removes files, and copies the rows of the snapshot from which the run resumed. Files
/// that cannot be removed stay in run.json, which names the run's place from now on (version 3).
Status CompleteEarlier(ResumePoint& from, const RunFolder& folder);

}  // namespace penstock::train
