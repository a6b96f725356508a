// The shared state behind a Ticket: set once by the engine, waited for by anyone.
//
// Shared between the tickets that the caller holds and the engine. Any thread may call anything.
#pragma once

#include "aio/ticket.h"
#include "base/mutex.h"

namespace penstock::aio {

struct Ticket::State {
 public:
  /// Records the outcome and wakes every waiter. Called once.
  void Complete(Status outcome) EXCLUDES(mutex_);
  bool done() const EXCLUDES(mutex_);
  Status Wait() EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar completed_;
  bool done_ GUARDED_BY(mutex_) = false;
  Status outcome_ GUARDED_BY(mutex_);
};

}  // namespace penstock::aio
