// The command line of `penstock doctor`.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "tools/cli/cli_ranks.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// What CLI11 fills in for `doctor`.
struct DoctorArguments {
  DoctorCommand options;
  RankArguments ranks;
};

CLI::App* AddDoctor(CLI::App& app, DoctorArguments* arguments);

/// Errors: those of MakeRanks; kInvalidArgument for ranks without a config.
Result<ToolCommand> MakeDoctor(const DoctorArguments& arguments);

}  // namespace penstock::train
