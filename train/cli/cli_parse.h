// The command line of penstock: train, launch and replay, beside the tools.
//
// Threads: the main thread.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tools/cli/tool_commands.h"
#include "train/launch/launch.h"
#include "train/trainer/replay.h"
#include "train/trainer/trainer.h"

namespace penstock::train {

using Command = std::variant<TrainOptions, ReplayCommand, LaunchCommand, ToolCommand>;

/// Gets the command that a line names, or what is wrong with its options: kInvalidArgument.
using TakeCommand = std::function<void(const Result<Command>&)>;

/// Reads the arguments (without the program's name). Errors: kInvalidArgument for arguments that
/// are unknown, missing, malformed or not implemented.
Result<Command> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace penstock::train
