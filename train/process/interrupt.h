// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks the work to end in an orderly way; a second
// request ends the process at once.
//
// One request may come as several signals. systemd or scancel signals all processes of a job, so a
// rank gets the signal directly and through its launcher; timeout(1) signals its command and then
// its group; a terminal that closes also signals through the shell. So any of these signals within
// a second of the first one is the same request.
//
// From the first Interrupt on, the process handles the signals until it ends. A first signal after
// the end of the work changes nothing: the outcome is still reported.
//
// Threads: requested() from any; at most one Interrupt exists at a time.
#pragma once

#include <chrono>

namespace penstock::train {

/// Signals that come within this time of the first one are the same request.
inline constexpr std::chrono::milliseconds kOneRequest{1000};

class Interrupt {
 public:
  /// Begins to handle the signals; SIGHUP only if it is not ignored (nohup). `notice` is the line
  /// that the first signal writes to stderr while the object exists; it must live until the process
  /// ends. `one_request`: instead of kOneRequest.
  explicit Interrupt(const char* notice, std::chrono::nanoseconds one_request = kOneRequest);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Whether a signal came since the first Interrupt. A signal between two Interrupts is not lost.
  bool requested() const;
};

}  // namespace penstock::train
