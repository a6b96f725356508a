#include "sim/stream.h"

#include <utility>

namespace penstock::sim {

void Event::Then(std::function<void()> what) const {
  if (state_ == nullptr || state_->happened) {
    what();
  } else {
    state_->waiting.push_back(std::move(what));
  }
}

void Stream::Wait(const Event& event) {
  Work([event](Done done) { event.Then(std::move(done)); });
}

void Stream::Work(std::function<void(Done)> begin) {
  work_.push_back(std::move(begin));
  if (!busy_) Next();
}

Event Stream::Record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  Work([state = event.state_](Done done) {
    state->happened = true;
    for (const auto& what : std::exchange(state->waiting, {})) what();
    done();
  });
  return event;
}

void Stream::Next() {
  if (work_.empty()) {
    busy_ = false;
    return;
  }
  busy_ = true;
  const std::function<void(Done)> begin = std::move(work_.front());
  work_.pop_front();
  begin([this]() { Next(); });
}

}  // namespace penstock::sim
