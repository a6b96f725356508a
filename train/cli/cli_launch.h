// The command line of `penstock launch`: its own options, then "--", then the ranks' command.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/cli/cli_parse.h"

namespace penstock::train {

/// `rest`: the words from "--" on. The ranks' command is checked here as well, so that its errors
/// are reported once, before a rank is started, and its help is returned as a text.
void AddLaunch(CLI::App& app, const std::vector<std::string>& rest, const TakeCommand& take);

/// The error for a missing "--" with a command after it.
Error NoRankCommand();

}  // namespace penstock::train
