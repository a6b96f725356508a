// penstock-<UUID>.run, beside path 0 of a state in an nvme_path: the path of the run that the state
// belongs to, so that a training that is to begin in the place of a run that is gone notices its
// state (docs/run_format.md).
//
// Threads: one at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "run/state_files.h"

namespace penstock::train {

/// Has the file of a state that holds a commit say that its run is `run`, durably. A state in `run`
/// has none. A failure is only told: the state is the run's without it.
void NoteOwner(const StateFiles& state, const Folder& run, const Notify& notify);

/// Returns the path of the run that the file of a state names; empty if it names none.
std::string OwnerOf(const StateFiles& state);

/// The file of a state, and what kills left of its writing.
struct OwnerFiles {
  Folder folder;
  std::vector<FoundFile> files;
};
/// Finds them; nothing if there are none, and no file that names none of these runs. Errors: of
/// Folder::List and Folder::Look.
Result<std::optional<OwnerFiles>> FindOwner(const StateFiles& state,
                                            const std::vector<std::string>& runs);

/// Returns the folders in which the package, in version 1, made these files, a folder for each run,
/// and the file there that names one of `runs`. Errors: of Folder::Look.
Result<std::vector<OwnerFiles>> FindOlderFolders(const StateFiles& state,
                                                 const std::vector<std::string>& runs);

/// Refuses to begin at step 0 in the folder at `run` if a state in `nvme_paths` belongs to a run
/// that was there, and is none of `known`. Errors: kNotFound, which names the states.
Status CheckNoOrphan(const std::string& run, const std::vector<std::string>& nvme_paths,
                     const std::vector<StateFiles>& known = {});

}  // namespace penstock::train
