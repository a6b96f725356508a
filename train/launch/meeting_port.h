// The port of this host at which rank 0 will listen.
//
// As long as the object lives, a socket is bound to the port, so that the system gives the port to
// no other program by itself. The socket does not listen and allows others beside it
// (SO_REUSEADDR), so rank 0, which asks for the port by its number, gets it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::train {

class MeetingPort {
 public:
  /// Holds a port; 0: any that is free. Errors: kUnavailable if another program has it.
  static Result<MeetingPort> Hold(uint16_t port);

  uint16_t number() const { return number_; }

 private:
  MeetingPort(UniqueFd socket, uint16_t number) : socket_(std::move(socket)), number_(number) {}

  UniqueFd socket_;
  uint16_t number_;
};

}  // namespace penstock::train
