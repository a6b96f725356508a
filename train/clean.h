// Removing a run: the files of its state and of its snapshots, wherever they lie, and its folder.
//
// Nothing that is not this run's is touched: a state file must bear the UUID that run.json names,
// and in the folder only what a run puts there goes. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/state_removal.h"
#include "train/run_lock.h"

namespace penstock::train {

struct CleanPlan {
  struct File {
    std::string path;
    Bytes size;
  };
  RunLock lock;
  std::string run;
  std::vector<offload::RemovableState> states;  ///< locked as long as the plan lives
  std::vector<std::string> missing_states;      ///< that run.json names and that are not there
  std::vector<File> files;                      ///< all others, in the order of their removal
  std::vector<std::string> folders;             ///< of snapshots, innermost first
  std::vector<std::string> kept;                ///< in RUN and not the run's: RUN stays for them
};

/// Looks, and removes nothing. Errors: those of ReadRunInfo (kNotFound: not a run) and of
/// RemovableState (in use, not this run's).
Result<CleanPlan> PlanClean(const std::string& run);

/// Removes the states first and run.json last, so that a removal that was cut off can be repeated.
Status Clean(const CleanPlan& plan);

/// What Clean does, or has done where `removed`, a file a line.
std::string ToText(const CleanPlan& plan, bool removed);

}  // namespace penstock::train
