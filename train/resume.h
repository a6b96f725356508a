// Going on from the last commit of a run.
//
// Where tiles, slots and paths are those of the committed state, training writes on in its files.
// Otherwise the state is moved: filled into new files and committed there; then run.json, replaced
// atomically, names the new ones, and the old ones are removed. run.json names both while both may
// be there, so that a kill in between leaves nothing unknown. docs/checkpointing.md has the user's
// view.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/run_folder.h"
#include "train/run_identity.h"
#include "zero/engine.h"

namespace penstock::train {

/// The last commit of a run.
struct ResumePoint {
  RunInfo info;
  /// Nobody else can use the files while it is open.
  std::unique_ptr<zero::CommittedState> state;
  zero::TrainState train;  ///< of the commit
  std::string identity;    ///< see train/run_identity.h
  std::string row;         ///< of the committed step, as in metrics.jsonl; empty for step 0

  /// What run.json says now, where the commit is not the run's last one but a snapshot, which
  /// stays.
  std::optional<RunInfo> replaced;
  std::string snapshot;  ///< its name then

  /// What run.json says now.
  const RunInfo& current() const { return replaced ? *replaced : info; }
};

/// Opens it, or the commit of a snapshot of `run`, whose lock the caller has. Errors:
/// kInvalidArgument where `run` is no run or has no commit, or no such snapshot; kUnavailable while
/// it is in use; kCorruption.
Result<ResumePoint> OpenResumePoint(const Folder& run, const std::optional<std::string>& snapshot);

/// Refuses a training whose numbers would not be those of the run: kInvalidArgument, naming all
/// that differs.
Status CheckIdentity(const ResumePoint& from, const std::string& now);

/// Whether it is the run's last commit and an engine with this layout, in these folders, can go on
/// in its files.
bool FitsInPlace(const ResumePoint& from, const offload::ShardLayout& layout, bool durable,
                 const std::vector<std::string>& folders);

/// Notes in run.json the files that the state will be moved to, before they are made: whatever ends
/// the move, the next resume knows them.
Status AnnounceMove(const ResumePoint& from, const RunFolder& folder, const StateFiles& target);

/// Moves the state into `engine`, which is new, and `folder` over to `info`, which names its state.
/// `stop_requested` is asked before every tile: kCancelled. After an error the run is as it was.
Status MoveState(ResumePoint& from, zero::Engine& engine, const RunFolder& folder, RunInfo info,
                 const std::function<bool()>& stop_requested);

/// Ends a MoveState that was interrupted: removes files, and takes over the rows of the snapshot
/// that it went back to. What cannot be removed stays in run.json.
Status CompleteMove(ResumePoint& from, const RunFolder& folder);

}  // namespace penstock::train
