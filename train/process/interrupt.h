// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks the work to end in an orderly way; the second
// one ends the process at once.
//
// From the first Interrupt on, the process handles the signals until it ends. A first signal that
// comes when the work has ended changes nothing: the outcome is about to be reported, and is not
// thrown away.
//
// Threads: requested() from any; at most one Interrupt exists at a time.
#pragma once

namespace penstock::train {

class Interrupt {
 public:
  /// Takes the signals over; SIGHUP only if it is not ignored (nohup). `notice` is the line that
  /// the first signal writes to stderr while the object exists; it must live until the process
  /// ends.
  explicit Interrupt(const char* notice);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Whether a signal came since the first Interrupt. A signal between two Interrupts is not lost.
  bool requested() const;
};

}  // namespace penstock::train
