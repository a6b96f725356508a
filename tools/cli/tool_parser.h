// The tools' part of a command line.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// Gets the tool that a line names, or what is wrong with its options: kInvalidArgument.
using TakeTool = std::function<void(const Result<ToolCommand>&)>;

/// Adds the tools' commands to a command line. The line calls `take` at the end of its parsing, if
/// one of them was given; `app` must live until then.
void AddTools(CLI::App& app, const TakeTool& take);

}  // namespace penstock::train
