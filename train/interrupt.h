// Ctrl-C: the first SIGINT or SIGTERM asks the running command to end in order (a training: after
// the step and a commit), the second one ends the process at once.
//
// Threads: requested() from any; at most one Interrupt exists at a time.
#pragma once

namespace penstock::train {

class Interrupt {
 public:
  /// Takes over SIGINT and SIGTERM until destruction.
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
};

}  // namespace penstock::train
