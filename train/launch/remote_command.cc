#include "train/launch/remote_command.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"

namespace penstock::train {

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,@%+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += R"('\'')";
    } else {
      word += c;
    }
  }
  return word + "'";
}

std::string RemoteCommand(const RemoteRank& rank) {
  std::string script = fmt::format("cd {} || exit 126; ", ShellWord(rank.folder));
  for (const std::string& variable : rank.variables) {
    const size_t end = variable.find('=');
    PENSTOCK_CHECK(end != std::string::npos);
    script +=
        fmt::format("export {}={}; ", variable.substr(0, end), ShellWord(variable.substr(end + 1)));
  }
  // `read` takes no byte after the line.
  script += "IFS= read -r secret || exit 3; export \"$secret\"; unset secret; ";
  // A shell's background commands get standard input only explicitly. The reader keeps no
  // descriptor of the rank's output, so that its end is noticed.
  script +=
      "exec 3<&0; "
      "{ while read -r signal; do kill -s \"$signal\" $$; done; kill -s TERM $$; } "
      "<&3 >/dev/null 2>&1 & "
      "exec ";
  script += ShellWord(rank.program);
  for (const std::string& argument : rank.arguments) script.append(" ").append(ShellWord(argument));
  script += " </dev/null 3<&-";
  return fmt::format("exec sh -c {}", ShellWord(script));
}

std::string SignalLine(int signal) {
  const char* name = ::sigabbrev_np(signal);
  PENSTOCK_CHECK(name != nullptr, "signal {}", signal);
  return std::string(name) + "\n";
}

}  // namespace penstock::train
