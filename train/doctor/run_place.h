// Where the state of a run lies, seen from this host: which of its folders are here, and how many
// ranks have theirs on one host.
//
// Plain values; threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/state_files.h"

namespace penstock::train {

struct RunPlace {
  std::vector<std::string> folders;  ///< of its state files on this host, each once
  uint64_t files = 1;                ///< state files of all ranks
  uint64_t ranks = 1;
  /// Whose drives the run is held against: this host's, or those of rank 0's if no rank ran here.
  std::string host;
  uint64_t ranks_of_host = 1;  ///< that ran on it
};

/// `own`: the name of this host. A rank that names no host (one that trained alone does not) is
/// taken to have run here.
RunPlace PlaceOf(const StateFiles& state, const std::string& own);

/// Returns the name of this host, as ranks write it beside their paths; empty if it has none.
std::string OwnHost();

}  // namespace penstock::train
