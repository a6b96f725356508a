// What the command lines of the programs have in common: how arguments are read, and how a command
// ends.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// The exit code of a comparison or a replay that found a difference, as of diff(1), and of a check
/// that failed.
inline constexpr int kDifferent = 1;

/// Gives a command line its version, and the rule that it has one command.
void Begin(CLI::App& app);

/// Reads the arguments (without the program's name). Returns the text of help or version if that
/// was asked for. Errors: kInvalidArgument for a command that is not there, and for arguments that
/// are unknown, missing or malformed.
Result<std::optional<PrintText>> ReadArguments(CLI::App& app,
                                               const std::vector<std::string>& arguments);

/// Prints to stdout; returns the exit code.
int Print(const std::string& text);
/// The same for a finding, whose exit code is kDifferent if it `differs`.
int PrintFinding(const std::string& text, bool differs);

/// Carries out a tool; returns the exit code.
int Execute(const ToolCommand& command);

/// Starts the log and runs a program; returns its exit code, also of what a library throws.
int RunProgram(const std::function<int()>& program) noexcept;

}  // namespace penstock::train
