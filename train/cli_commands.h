// The commands that read a finished run.
//
// Threads: the main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "train/cli.h"

namespace penstock::train {

/// Writes the last commit of a run as a Hugging Face folder. Returns what to say on stdout.
Result<std::string> RunExport(const ExportCommand& command);

/// Reads the last commit of a run and verifies every checksum. Returns what to say on stdout.
Result<std::string> RunInspect(const InspectCommand& command);

}  // namespace penstock::train
