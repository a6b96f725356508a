#include "tools/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "base/exception_name.h"
#include "base/message_text.h"
#include "tools/cli/usage_mistake.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

Error UnknownCommand(const std::string& name, const std::vector<std::string>& names) {
  return MakeError(ErrorCode::kInvalidArgument, "unknown command {}; there are {} and {}", name,
                   fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace

void Begin(CLI::App& app) {
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
}

Result<std::optional<PrintText>> ReadArguments(CLI::App& app,
                                               const std::vector<std::string>& arguments) {
  const std::vector<std::string> names = CommandsOf(app);
  if (!arguments.empty() && !arguments[0].starts_with('-') &&
      std::ranges::find(names, arguments[0]) == names.end()) {
    return UnknownCommand(arguments[0], names);
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
    return std::optional<PrintText>();
  } catch (const CLI::CallForHelp&) {
    return std::optional(PrintText{app.help()});
  } catch (const CLI::CallForVersion&) {
    return std::optional(PrintText{app.version() + "\n"});
  } catch (const CLI::ParseError& error) {
    const auto commands = app.get_subcommands();
    return MakeError(ErrorCode::kInvalidArgument, "{}; penstock {}--help lists the options",
                     MistakeIn(app, error),
                     commands.empty() ? "" : commands.front()->get_name() + " ");
  }
}

int Print(const std::string& text) {
  // Names of tensors and paths, which anybody may have made, stand in it.
  const bool written = std::fputs(Printable(text).c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : ReportError(MakeError(ErrorCode::kIo, "writing to stdout failed"));
}

int PrintFinding(const std::string& text, bool differs) {
  const int printed = Print(text);
  return printed == 0 && differs ? kDifferent : printed;
}

int RunProgram(const std::function<int()>& program) noexcept {
  try {
    StartLogging();
    return program();
  } catch (const std::bad_alloc&) {
    return ReportError(MakeError(ErrorCode::kOutOfMemory,
                                 "the machine has no memory left; lower --device-memory or "
                                 "--host-memory"));
  } catch (const std::exception& error) {
    return ReportError(
        MakeError(ErrorCode::kIo, "unexpected failure in a library: {}", ExceptionName(error)));
  }
}

}  // namespace penstock::train
