// Commands of the command line, and their options: each fills in a typed value.
//
// CLI11 only splits the line. What a text means is decided by the reader of its option, one for
// each kind of value, so that the same text means the same wherever it stands. A text that the
// reader refuses ends the parsing with the reader's message.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// Adds a command. Its options fill in a `Filled`, which `take` gets when the line is read.
template <typename Filled>
std::pair<CLI::App*, Filled*> AddCommand(CLI::App& app, const char* name, const char* help,
                                         std::function<void(const Filled&)> take) {
  const auto filled = std::make_shared<Filled>();
  CLI::App* const command = app.add_subcommand(name, help);
  command->callback([filled, take = std::move(take)] { take(*filled); });
  return {command, filled.get()};
}

/// The type of the value that fills a target: T for a T and for a std::optional<T>.
template <typename T>
struct Filling {
  using Value = T;
};
template <typename T>
struct Filling<std::optional<T>> {
  using Value = T;
};

/// Adds an option whose text `read` makes a value of; help calls its kind `kind`.
template <typename Value, typename Target>
CLI::Option* AddValue(CLI::App& command, const char* name, Target* target,
                      std::function<Result<Value>(const std::string&)> read, const char* help,
                      const std::string& kind = "TEXT") {
  const auto fill = [target, read](const std::string& text) {
    *target = static_cast<typename Filling<Target>::Value>(read(text).value());  // checked
  };
  const auto refuse = [read](const std::string& text) {
    const Result<Value> value = read(text);
    return value.ok() ? std::string() : value.error().message;
  };
  return command.add_option_function<std::string>(name, fill, help)
      ->type_name(kind)
      ->check(CLI::Validator(refuse, ""));
}

/// A whole number, as ParseWhole reads it.
template <typename Target>
CLI::Option* AddWhole(CLI::App& command, const char* name, Target* target, WholeRange range,
                      const char* help) {
  return AddValue<uint64_t>(
      command, name, target, [range](const std::string& text) { return ParseWhole(text, range); },
      help, "N");
}

/// Which numbers an argument may be.
struct RealRange {
  double low = 0;
  double high = std::numeric_limits<double>::max();
  bool above = false;  ///< `low` itself is too little
  bool below = false;  ///< `high` itself is too much
};

/// Reads a decimal number like 5e-5. Errors: kInvalidArgument for everything else and for numbers
/// out of range.
Result<double> ParseReal(const std::string& text, RealRange range = {});

/// A number, as ParseReal reads it.
template <typename Target>
CLI::Option* AddReal(CLI::App& command, const char* name, Target* target, RealRange range,
                     const char* help) {
  return AddValue<double>(
      command, name, target, [range](const std::string& text) { return ParseReal(text, range); },
      help, "NUMBER");
}

/// Returns the index of the word that a text is. Errors: kInvalidArgument if it is none of them.
Result<size_t> ParseWord(const std::string& text, const std::vector<std::string>& words);

/// Words, with the value that each stands for.
template <typename Value>
using Words = std::vector<std::pair<std::string, Value>>;

/// One of some words.
template <typename Target>
CLI::Option* AddWord(CLI::App& command, const char* name, Target* target,
                     const Words<typename Filling<Target>::Value>& words, const char* help) {
  std::vector<std::string> names;
  std::string kind;
  for (const auto& [word, value] : words) {
    names.push_back(word);
    kind += (kind.empty() ? "{" : ",") + word;
  }
  using Value = typename Filling<Target>::Value;
  const auto read = [words, names](const std::string& text) -> Result<Value> {
    PENSTOCK_ASSIGN(const size_t index, ParseWord(text, names));
    return words[index].second;
  };
  return AddValue<Value>(command, name, target, read, help, kind + "}");
}

/// A size, as ParseBytes reads it.
CLI::Option* AddSize(CLI::App& command, const char* name, std::optional<Bytes>* size,
                     const char* help);

/// Refuses a path or a name that is empty, as the value of a shell variable that is not set is.
CLI::Validator NameCheck();

/// A path or a name.
template <typename Target>
CLI::Option* AddName(CLI::App& command, const char* name, Target* target, const char* help) {
  return command.add_option(name, *target, help)->check(NameCheck());
}

/// A path or a name that may be given several times, one each time.
CLI::Option* AddNames(CLI::App& command, const char* name, std::vector<std::string>* names,
                      const char* help);

}  // namespace penstock::train
