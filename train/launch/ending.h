// How the process of a rank has ended.
//
// Plain values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::train {

/// Either an exit code or the signal that killed it.
struct Ending {
  uint32_t rank = 0;
  int code = 0;
  int signal = 0;          ///< 0: it exited
  bool elsewhere = false;  ///< the process is ssh, and the rank was on another host

  bool operator==(const Ending&) const = default;
};

/// Makes an Ending of waitpid's status.
Ending EndingOf(uint32_t rank, int wait_status, bool elsewhere);

/// Returns the exit code of a launch that failed with this ending: 3 for a signal, and for the own
/// exit codes of ssh and of the shell on the other host (126, 127, 255); else that of the rank.
int ExitCodeOf(const Ending& ending);

/// Whether the rank has ended with a code of penstock for an error that it, or another rank for
/// all, has reported.
bool HasReported(const Ending& ending);

/// Returns what happened, for messages: "was killed by signal 9 (Killed)".
std::string EndingText(const Ending& ending);

}  // namespace penstock::train
