// Removing a run: the files of its state and of its snapshots, wherever they lie, and its folder.
//
// Nothing that is not this run's is touched: a state file must bear the UUID that run.json names,
// a snapshot the UUID of the run, and in their folders only what a run puts there goes. RUN and
// what is in it are used through descriptors, and no link leads out of it (base/folder.h). Threads:
// one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "offload/state_removal.h"
#include "train/run_lock.h"

namespace penstock::train {

struct CleanPlan {
  struct Item {
    std::shared_ptr<const Folder> in;
    std::string name;
    /// None: a folder, behind what lies in it.
    std::optional<FoundFile> file = std::nullopt;
    std::string path() const { return in->PathOf(name); }
  };
  RunLock lock;
  std::shared_ptr<const Folder> run;            ///< its path has no links
  std::vector<offload::RemovableState> states;  ///< locked as long as the plan lives
  std::vector<std::string> missing_states;      ///< that run.json names and that are not there
  /// All others, in the order of their removal: the snapshots', the run's, run.json and RUN.
  std::vector<Item> items;
  std::vector<std::string> kept;  ///< not the run's: RUN stays for them
};

/// Looks, and removes nothing. An empty folder is what a removal leaves that is cut off at its very
/// end. Errors: those of ReadRunInfo (kNotFound: not a run) and of RemovableState (in use, not this
/// run's).
Result<CleanPlan> PlanClean(const std::string& path);

/// Removes the states first, and each run.json when all else that it stands for is gone: a removal
/// that was cut off can be repeated. Errors: kNotFound where another file has taken the place of
/// one of the plan, and stays.
Status Clean(const CleanPlan& plan);

/// What Clean does, or has done where `removed`, a file a line.
std::string ToText(const CleanPlan& plan, bool removed);

}  // namespace penstock::train
