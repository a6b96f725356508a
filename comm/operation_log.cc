#include "comm/operation_log.h"

#include <fmt/format.h>

#include <chrono>

#include "comm/members.h"
#include "comm/watch.h"

namespace penstock::comm {
namespace {

const char* NameOfState(OperationState state) {
  switch (state) {
    case OperationState::kEnqueued:
      return "enqueued";
    case OperationState::kBegun:
      return "begun";
    case OperationState::kEnded:
      return "ended";
  }
  return "";
}

}  // namespace

void OperationLog::Add(const Operation& operation, OperationState state, SteadyTime now) {
  if (moments_.size() < kKept) {
    moments_.push_back({.at = now, .state = state, .operation = operation});
    return;
  }
  Moment& oldest = moments_[next_];
  next_ = (next_ + 1) % kKept;
  oldest.at = now;
  oldest.state = state;
  oldest.operation = operation;
}

std::string OperationLog::Text(SteadyTime now) const {
  std::string text;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const Moment& moment = moments_[(next_ + i) % moments_.size()];
    const std::chrono::duration<double> ago = now - moment.at;
    text += fmt::format("{:>10.3f} s ago  {:<8}  {}\n", ago.count(), NameOfState(moment.state),
                        OneLine(OperationName(moment.operation), kMaxDoing));
  }
  return text;
}

}  // namespace penstock::comm
