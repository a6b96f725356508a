#include "aio/ticket.h"

#include "aio/ticket_state.h"
#include "base/check.h"

namespace penstock::aio {

void Ticket::State::Complete(Status outcome) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(!done_, "a request completed twice");
  outcome_ = std::move(outcome);
  done_ = true;
  completed_.NotifyAll();
}

bool Ticket::State::done() const {
  MutexLock lock(mutex_);
  return done_;
}

Status Ticket::State::Wait() {
  MutexLock lock(mutex_);
  while (!done_) completed_.Wait(mutex_);
  return outcome_;
}

bool Ticket::done() const {
  PENSTOCK_CHECK(valid(), "a ticket of no request was asked for its state");
  return state_->done();
}

Status Ticket::Wait() const {
  PENSTOCK_CHECK(valid(), "a ticket of no request was waited for");
  return state_->Wait();
}

Status WaitAll(std::span<const Ticket> tickets) {
  Status first;
  for (const Ticket& ticket : tickets) {
    Status outcome = ticket.Wait();
    if (first.ok() && !outcome.ok()) first = std::move(outcome);
  }
  return first;
}

}  // namespace penstock::aio
