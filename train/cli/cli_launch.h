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

/// What CLI11 fills in for `launch`; numbers still as text.
struct LaunchArguments {
  LaunchCommand options;
  std::string ranks;
  std::string master_port;
};

CLI::App* AddLaunch(CLI::App& app, LaunchArguments* arguments);

/// The error for a missing "--" with a command after it.
Error NoRankCommand();

/// Makes the command from CLI11's results and the words from "--" on. The ranks' command is checked
/// here as well, so that its errors are reported once, before a rank is started, and its help is
/// returned as a text. Errors: kInvalidArgument.
Result<Command> MakeLaunch(const LaunchArguments& arguments, const std::vector<std::string>& rest);

}  // namespace penstock::train
