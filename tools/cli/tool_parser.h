// The tools' part of a command line.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/result.h"
#include "tools/cli/tool_commands.h"

namespace penstock::train {

/// Adds the tools' commands to a command line, and says which of them was given.
class ToolParser {
 public:
  /// `app` must outlive this, which must outlive the parsing.
  explicit ToolParser(CLI::App& app);
  ~ToolParser();

  /// Returns the tool that was given; nothing if another command was. Errors: kInvalidArgument.
  Result<std::optional<ToolCommand>> Take() const;

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

}  // namespace penstock::train
