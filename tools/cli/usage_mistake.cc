#include "tools/cli/usage_mistake.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "base/message_text.h"

namespace penstock::train {
namespace {

/// The first option that the command does not have, or nothing.
std::string UnknownOption(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.starts_with('-') && word.size() > 1) return word;
  }
  return "";
}

std::string Missing(const CLI::App& app, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0) return option->get_name() + " is required";
  }
  return &command == &app ? "a command is required" : "an argument is required";
}

/// CLI11 begins its text with the option's name.
std::string WrongCount(const CLI::App& command, std::string_view text) {
  const std::string name(text.substr(0, text.find(": ")));
  const CLI::Option* const option = command.get_option_no_throw(name);
  const bool repeated = option != nullptr && option->results().size() > 1;
  return name + (repeated ? " is given more than once" : " needs a value");
}

std::string FlagWithValue(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const bool flag = option->get_items_expected_max() == 0;
    if (flag && option->count() > 0 && option->results().front() != "true") {
      return option->get_name() + " takes no value";
    }
  }
  return "a value is not of the kind that its option takes";
}

std::string BothGiven(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const CLI::Option* other : option->get_excludes()) {
      if (option->count() == 0 || other->count() == 0) continue;
      return fmt::format("{} and {} exclude each other; keep one", option->get_name(),
                         other->get_name());
    }
  }
  return "two options exclude each other";
}

}  // namespace

std::string MistakeIn(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> left = app.remaining(true);
  // An unknown option comes before what is missing, which may be what was meant by it.
  const std::string unknown = UnknownOption(left);
  if (!unknown.empty()) return "unknown option " + unknown;
  const auto commands = app.get_subcommands();
  const CLI::App& command = commands.empty() ? app : *commands.front();
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::RequiredError:
      return Missing(app, command);
    case CLI::ExitCodes::ValidationError:
      return MessageLine(error.what());  // of our own readers (tools/cli/cli_options.h)
    case CLI::ExitCodes::ArgumentMismatch:
      return WrongCount(command, error.what());
    case CLI::ExitCodes::ConversionError:
      return FlagWithValue(command);
    case CLI::ExitCodes::ExcludesError:
      return BothGiven(command);
    case CLI::ExitCodes::ExtrasError:
      if (!left.empty()) return fmt::format("\"{}\" is not expected", MessageLine(left.front()));
      break;
    default:
      break;
  }
  return "the arguments are not such as the command takes";
}

}  // namespace penstock::train
