// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks the work to end in order, the second one ends
// the process at once.
//
// The process has the signals from the first Interrupt to its end. A first signal that comes when
// the work has ended changes nothing: how it ended is about to be said, and is not thrown away.
//
// Threads: requested() from any; at most one Interrupt exists at a time.
#pragma once

namespace penstock::train {

class Interrupt {
 public:
  /// Takes the signals over; SIGHUP only where it is not ignored (nohup). `notice` is the line that
  /// the first signal writes to stderr while the object exists; it must outlive the process.
  explicit Interrupt(const char* notice);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Whether a signal came since the first Interrupt: one between two of them is not lost.
  bool requested() const;
};

}  // namespace penstock::train
