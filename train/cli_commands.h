// The commands that work on finished runs.
//
// Threads: the main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "train/cli.h"

namespace penstock::train {

/// Writes the last commit of a run as a Hugging Face folder. Returns what to say on stdout.
Result<std::string> RunExport(const ExportCommand& command);

/// What an inspection says on stdout, and the error that damage is.
struct InspectOutcome {
  std::string text;
  Status intact;
};
/// Reads the last commit of a run and verifies every checksum.
Result<InspectOutcome> RunInspect(const InspectCommand& command);

/// What a comparison says on stdout, and whether it found no difference.
struct CompareOutcome {
  std::string text;
  bool equal;
};
Result<CompareOutcome> RunCompare(const CompareCommand& command);

/// Removes a run, or says what it would remove. Returns what to say on stdout.
Result<std::string> RunClean(const CleanCommand& command);

}  // namespace penstock::train
