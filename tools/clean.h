// Removes a run: the files of its state and of its snapshots, wherever they lie, and its folder.
//
// Only files of this run are touched: a state file must bear the UUID that run.json names, a
// snapshot the UUID of the run, and in their folders only files that a run puts there are removed.
// RUN and what is in it are used through descriptors, and no link leads out of it (base/folder.h).
// Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "offload/state_removal.h"
#include "run/run_lock.h"
#include "run/scratch_folder.h"

namespace penstock::train {

/// A lock file that was made to look at a run. It goes when the look is over.
class MadeLock {
 public:
  MadeLock(std::shared_ptr<const Folder> in, FileId id) : in_(std::move(in)), id_(id) {}
  ~MadeLock() { static_cast<void>(in_->RemoveFile(kLockName, id_)); }
  MadeLock(const MadeLock&) = delete;
  MadeLock& operator=(const MadeLock&) = delete;

 private:
  std::shared_ptr<const Folder> in_;
  FileId id_;
};

struct CleanPlan {
  struct Item {
    std::shared_ptr<const Folder> in;
    std::string name;
    /// None: a folder, which comes after its contents.
    std::optional<FoundFile> file = std::nullopt;
    std::string path() const { return in->PathOf(name); }
  };
  RunLock lock;
  std::unique_ptr<const MadeLock> made_lock = {};  ///< goes before the lock ends
  std::shared_ptr<const Folder> run;               ///< its path has no links
  std::vector<offload::RemovableState> states;     ///< locked as long as the plan lives
  /// Those that run.json names and that do not exist, with rank and host if there are several.
  std::vector<std::string> missing_states;
  /// All other files, in the order of their removal: the snapshots', the run's, run.json and RUN.
  std::vector<Item> items;
  std::optional<LeftScratch> replay;  ///< what a killed replay left in RUN
  std::vector<std::string> kept;      ///< not the run's: RUN stays for them
  /// Files of states that a copied run has in common with its original, which stay.
  std::vector<std::string> shared;
};

/// Makes the plan, and removes nothing; what is in the folder stays as it is, and nothing is added
/// that outlives the plan. An empty folder counts as the rest of a removal that was
/// cut off at its very end. Errors: those of ReadRunInfo (kNotFound: not a run) and of
/// RemovableState (in use, not this run's).
Result<CleanPlan> PlanClean(const std::string& path);

/// Removes the states first, and each run.json when everything else that it names is gone, so that
/// a removal that was cut off can be repeated. Errors: kNotFound if another file has taken the
/// place of one in the plan; that file stays.
Status Clean(CleanPlan& plan);

/// Returns what Clean will do, or, if `removed`, what it has done: one line for each file.
std::string ToText(const CleanPlan& plan, bool removed);

}  // namespace penstock::train
