// The ticket of a request: whether it is complete, and with which outcome.
//
// Threads: any.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/result.h"

namespace penstock::aio {

/// The handle of one submitted request; copies refer to the same request.
class Ticket {
 public:
  struct State;
  Ticket() = default;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// False for a ticket that was default-constructed.
  bool valid() const { return state_ != nullptr; }
  bool done() const;
  /// Blocks until the request is complete and returns the outcome. May be called by several
  /// threads.
  Status Wait() const;

 private:
  std::shared_ptr<State> state_;
};

/// Waits for all. Returns the first failure in the order given, or success.
Status WaitAll(std::span<const Ticket> tickets);

}  // namespace penstock::aio
