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
};

/// Opens it. Errors: kInvalidArgument where `run` is no run or has no commit; kUnavailable while it
/// is in use; kCorruption.
Result<ResumePoint> OpenResumePoint(const std::string& run);

/// Refuses a training whose numbers would not be those of the run: kInvalidArgument, naming all
/// that differs.
Status CheckIdentity(const ResumePoint& from, const std::string& now);

/// Whether an engine with this layout, in these folders, can go on in the files of the commit.
bool FitsInPlace(const ResumePoint& from, const offload::Layout& layout, bool durable,
                 const std::vector<std::string>& folders);

/// Moves the state into `engine`, which is new, and `folder` over to `info`, which names its state.
/// `stop_requested` is asked before every tile: kCancelled. After an error the run is as it was.
Status MoveState(ResumePoint& from, zero::Engine& engine, const RunFolder& folder, RunInfo info,
                 const std::function<bool()>& stop_requested);

/// Removes what an interrupted MoveState left.
Status RemoveLeftovers(ResumePoint& from, const RunFolder& folder);

}  // namespace penstock::train
