// The commands that work on finished runs.
//
// Threads: the main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// Writes the last commit of a run as a Hugging Face folder. Returns the output for stdout.
Result<std::string> RunExport(const ExportCommand& command);

/// Reads what a run found in its numbers, and writes the plot if one is asked for. Returns the
/// output for stdout. Errors: kInvalidArgument if the plot's file exists.
Result<std::string> RunNumericsCommand(const NumericsCommand& command);

/// The output of a comparison for stdout, and whether it found no difference.
struct CompareOutcome {
  std::string text;
  bool equal;
};
Result<CompareOutcome> RunCompare(const CompareCommand& command);

/// Removes a run, or says what it would remove. Returns the output for stdout.
Result<std::string> RunClean(const CleanCommand& command);

}  // namespace penstock::train
