// The command line of `penstock plan`.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/tool_parser.h"

namespace penstock::train {

/// `take` gets an error for options that ask different questions, or lack what they need.
void AddPlan(CLI::App& app, const TakeTool& take);

}  // namespace penstock::train
