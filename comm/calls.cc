#include "comm/calls.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace penstock::comm {

Result<std::unique_ptr<Calls>> Calls::Create() {
  UniqueFd wakes(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakes.valid()) return ErrnoError(errno, "the job's thread cannot be woken");
  return std::unique_ptr<Calls>(new Calls(std::move(wakes)));
}

void Calls::Wake() const {
  const uint64_t one = 1;
  // Fails only where the counter is full: then the thread is awake.
  [[maybe_unused]] const ssize_t written = ::write(wakes_.get(), &one, sizeof(one));
}

Status Calls::AfterEnd(bool finishes) const {
  if (ending_->kind != EndKind::kFinished) return ending_->why;
  if (finishes) return {};
  return Error{ErrorCode::kInvalidArgument, "all ranks have left the job by Finish"};
}

Result<std::vector<std::string>> Calls::Make(Message message, uint32_t parts) {
  const Channel channel = ChannelOf(message.type);
  const bool finishes = channel == Channel::kFinish;
  MutexLock lock(mutex_);
  if (ending_.has_value()) {
    PENSTOCK_TRY(AfterEnd(finishes));
    return std::vector<std::string>(parts);
  }
  uint64_t& count = counts_[static_cast<size_t>(channel)];
  if (waiting_.contains(CallNumber(channel, count))) {
    return Error{ErrorCode::kInvalidArgument,
                 "two threads call the job at once, where ranks do one after the other"};
  }
  const uint64_t number = CallNumber(channel, ++count);
  message.number = number;
  waiting_[number].parts.resize(parts);
  handed_on_.push_back(std::move(message));
  Wake();
  while (!waiting_.at(number).done && !ending_.has_value()) answered_.Wait(mutex_);
  const Waiting answer = std::move(waiting_.at(number));
  waiting_.erase(number);
  if (!answer.done) {
    PENSTOCK_TRY(AfterEnd(finishes));
    return std::vector<std::string>(parts);
  }
  return answer.parts;
}

void Calls::Tell(Message message) {
  MutexLock lock(mutex_);
  if (ending_.has_value()) return;
  handed_on_.push_back(std::move(message));
  Wake();
}

void Calls::Leave() {
  MutexLock lock(mutex_);
  leaves_ = true;
  Wake();
}

Status Calls::status() const {
  MutexLock lock(mutex_);
  return ending_.has_value() ? ending_->why : Status();
}

bool Calls::ended_agreed() const {
  MutexLock lock(mutex_);
  return ending_.has_value() && ending_->kind == EndKind::kAgreed;
}

Calls::Taken Calls::Take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(wakes_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  Taken taken = {.messages = std::move(handed_on_), .leaves = leaves_};
  handed_on_.clear();
  return taken;
}

bool Calls::Reply(Message message) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(message.number);
  if (found == waiting_.end()) return ending_.has_value();
  Waiting& call = found->second;
  if (call.done || message.b >= call.parts.size()) return false;
  call.parts[message.b] = std::move(message.text);
  call.done = ++call.arrived == call.parts.size();
  if (call.done) answered_.NotifyAll();
  return true;
}

void Calls::End(const Ending& ending) {
  MutexLock lock(mutex_);
  if (ending_.has_value()) return;
  ending_ = ending;
  answered_.NotifyAll();
}

}  // namespace penstock::comm
