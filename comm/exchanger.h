// Executes one exchange after the other between the ranks of a CPU device, with a library or our
// own code. The layer above (comm/stream_communicator.h) is the same for all.
//
// Threads: Run from one thread at a time, Abort from any.
#pragma once

#include "base/result.h"
#include "comm/exchange.h"

namespace penstock::comm {

class Exchanger {
 public:
  /// For the other ranks, this one has ended.
  virtual ~Exchanger() = default;

  /// Waits for the other ranks and returns when the exchange is over on this one: its memory may
  /// change then. Errors: another rank is in another call, has ended or cannot be reached, which
  /// the message names; what Abort was called with. After an error, all later ones fail as well.
  virtual Status Run(const Exchange& exchange) = 0;
  /// Ends the Run that waits, and all later ones, with `why`, unless they have failed already.
  virtual void Abort(const Error& why) = 0;
};

}  // namespace penstock::comm
