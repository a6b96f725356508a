#include "train/launch/rank_fates.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "train/process/log.h"

namespace penstock::train {

void RankFates::NotStarted(Time now) { Fail(ExitCode(ErrorCode::kUnavailable), now); }

bool RankFates::Interrupted(int signal, Time now) {
  interruptions_.insert(signal);
  if (!interrupted_at_) {
    interrupted_at_ = now;
    return true;
  }
  if (now - *interrupted_at_ < patience_.one_request) return false;
  if (std::exchange(quitting_, true) || next_ != Order::kNone) return true;
  next_ = Order::kTerminate;
  next_at_ = now + patience_.terminate;
  if (!failed_) exit_code_ = ExitCode(ErrorCode::kCancelled);
  return true;
}

/// Signals kill a rank that does not handle them yet.
bool RankFates::WasInterrupted(const Ending& ending) const {
  return ending.signal != 0 ? interruptions_.contains(ending.signal)
                            : ending.code == ExitCode(ErrorCode::kCancelled);
}

std::optional<Ending> RankFates::Ended(std::span<const Ending> endings, Time now) {
  quitting_ = quitting_ || std::ranges::any_of(endings, [this](const Ending& ending) {
                return ending.signal != 0 && WasInterrupted(ending);
              });
  std::optional<Ending> first;
  for (const Ending& ending : endings) {
    PENSTOCK_CHECK(running_ > 0);
    --running_;
    if (ending.code == 0 && ending.signal == 0) continue;
    if (quitting_ || WasInterrupted(ending)) {
      if (!failed_) exit_code_ = ExitCode(ErrorCode::kCancelled);
      continue;
    }
    const auto place = [](const Ending& e) { return std::pair(e.signal == 0, e.rank); };
    if (!first.has_value() || place(ending) < place(*first)) first = ending;
  }
  if (!first.has_value()) return std::nullopt;
  const bool was_killed = first->signal != 0;
  if (failed_) {
    // Once ranks are being ended, a signal proves nothing.
    if (!was_killed || !may_have_noticed_ || next_ != Order::kTerminate) return std::nullopt;
  } else {
    Fail(ExitCodeOf(*first), now + patience_.terminate);
  }
  may_have_noticed_ = first->code == ExitCode(ErrorCode::kUnavailable);
  return first;
}

void RankFates::Fail(int exit_code, Time when) {
  failed_ = true;
  exit_code_ = exit_code;
  next_ = Order::kTerminate;
  next_at_ = when;
}

std::optional<RankFates::Time> RankFates::deadline() const {
  if (next_ == Order::kNone || over()) return std::nullopt;
  return next_at_;
}

RankFates::Order RankFates::Due(Time now) {
  const std::optional<Time> when = deadline();
  if (!when.has_value() || now < *when) return Order::kNone;
  const Order order = next_;
  left_ = order == Order::kLeave;
  next_ = order == Order::kTerminate ? Order::kKill
          : order == Order::kKill    ? Order::kLeave
                                     : Order::kNone;
  next_at_ = now + (next_ == Order::kKill ? patience_.kill : patience_.leave);
  return order;
}

}  // namespace penstock::train
