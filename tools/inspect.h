// `penstock inspect`: shows what a run has committed, and verifies all of it.
//
// Threads: the main thread.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock::train {

/// The output of an inspection for stdout, and the error if something is damaged.
struct InspectOutcome {
  std::string text;
  Status intact;
};

/// Reads the last commit of the run at `path` and verifies every checksum.
Result<InspectOutcome> RunInspect(const std::string& path);

}  // namespace penstock::train
