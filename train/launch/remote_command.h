// The command that ssh runs on another host: it becomes a rank there.
//
// The first line of ssh's standard input is a variable of the rank's environment that no list of
// processes may show: the token of the job.
//
// A rank on another host gets signals, and the end of its launcher, through ssh's standard input.
// The shell that becomes the rank leaves a reader, which reads names of signals from there, one a
// line, and sends them to the rank. The end of the input, when the launcher or the connection is
// gone, counts as TERM. ssh itself ignores the signals that it forwards.
//
// Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

/// Returns `text`, which may hold anything but NUL, as one word of a POSIX shell.
std::string ShellWord(std::string_view text);

/// The rank on the other host.
struct RemoteRank {
  std::string folder;                  ///< its working folder, absolute
  std::string program;                 ///< absolute
  std::vector<std::string> arguments;  ///< without the program's name
  std::vector<std::string> variables;  ///< "NAME=value"; names are those of a shell
};

/// Returns the command for the login shell there. It exits with 3 if the folder is missing.
std::string RemoteCommand(const RemoteRank& rank);

/// Returns the line that sends the rank a signal: "TERM\n". Precondition: SignalLine knows it:
/// SIGINT, SIGTERM, SIGHUP, SIGKILL, SIGSTOP, SIGCONT.
std::string SignalLine(int signal);

}  // namespace penstock::train
