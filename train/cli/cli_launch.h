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

/// The error that there is no "--" with a command behind it.
Error NoRankCommand();

/// Makes the command of what CLI11 has read and of the words from "--" on. The ranks' command is
/// read here as well: what is wrong with it is said once, before a rank is started, and its help is
/// returned as a text. Errors: kInvalidArgument.
Result<Command> MakeLaunch(const LaunchArguments& arguments, const std::vector<std::string>& rest);

}  // namespace penstock::train
