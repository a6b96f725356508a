// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks the work to end in order, the second one ends
// the process at once.
//
// Threads: requested() from any; at most one Interrupt exists at a time.
#pragma once

namespace penstock::train {

class Interrupt {
 public:
  /// Takes over the signals until destruction; SIGHUP only where it is not ignored (nohup).
  /// `notice` is the line that the first signal writes to stderr; it must outlive the object.
  explicit Interrupt(const char* notice);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
};

}  // namespace penstock::train
