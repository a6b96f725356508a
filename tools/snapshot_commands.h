// `penstock snapshot` and `penstock snapshots`.
//
// Threads: the main thread.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock::train {

/// Keeps the commit of the run at `path` as `name`: by the process that trains it, if there is one.
/// Returns the output for stdout.
Result<std::string> RunSnapshot(const std::string& path, const std::string& name);
/// Lists the snapshots of the run at `path`. Returns the output for stdout.
Result<std::string> RunSnapshots(const std::string& path);

}  // namespace penstock::train
