// The names of a state's files (docs/state_format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/uuid.h"

namespace penstock::offload {

/// Returns the name of the file of path `path` (from 0) of a rank.
std::string StateFileName(const Uuid& uuid, uint32_t rank, size_t path);
/// Returns the files that a rank of a state with this UUID has in these folders.
std::vector<std::string> StatePathsIn(const std::vector<std::string>& folders, const Uuid& uuid,
                                      uint32_t rank = 0);
/// Returns the files of states in a folder, of any run, including unfinished copies, by name; none
/// if the folder cannot be read.
std::vector<std::string> AllStatesIn(const std::string& folder);

/// Returns the name of the copy `target` while it is written, which a kill leaves behind; see
/// RemovableState.
std::string UnfinishedCopy(const std::string& target);

}  // namespace penstock::offload
