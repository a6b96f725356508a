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

/// Makes an Ending of what waitpid said.
Ending EndingOf(uint32_t rank, int wait_status, bool elsewhere);

/// Returns the exit code of a launch that failed with this ending: 3 for a signal, and for what ssh
/// and the shell on the other host say about themselves (126, 127, 255); else that of the rank.
int ExitCodeOf(const Ending& ending);

/// Whether the rank has ended with a code with which penstock ends after it has reported an error,
/// or after another rank has reported one for all.
bool HasReported(const Ending& ending);

/// Returns what happened, for people: "was killed by signal 9 (Killed)".
std::string EndingText(const Ending& ending);

}  // namespace penstock::train
