// Removing a run: the files of its state and of its snapshots, wherever they lie, and its folder.
//
// Nothing that is not this run's is touched: a state file must bear the UUID that run.json names,
// and in the folder only what a run puts there goes. Threads: one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/state_removal.h"
#include "train/run_lock.h"

namespace penstock::train {

struct CleanPlan {
  struct Item {
    std::string path;
    std::optional<Bytes> size;  ///< of a file; none: a folder, behind what lies in it
  };
  RunLock lock;
  std::string run;
  std::vector<offload::RemovableState> states;  ///< locked as long as the plan lives
  std::vector<std::string> missing_states;      ///< that run.json names and that are not there
  /// All others, in the order of their removal: the snapshots', the run's, run.json and RUN.
  std::vector<Item> items;
  std::vector<std::string> kept;  ///< not the run's: RUN stays for them
};

/// Looks, and removes nothing. An empty folder is what a removal leaves that is cut off at its very
/// end. Errors: those of ReadRunInfo (kNotFound: not a run) and of RemovableState (in use, not this
/// run's).
Result<CleanPlan> PlanClean(const std::string& run);

/// Removes the states first, and each run.json when all else that it stands for is gone: a removal
/// that was cut off can be repeated.
Status Clean(const CleanPlan& plan);

/// What Clean does, or has done where `removed`, a file a line.
std::string ToText(const CleanPlan& plan, bool removed);

}  // namespace penstock::train
