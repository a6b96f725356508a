// Decides what one rank's end means for the others, and with which code the launch ends.
//
// The ranks of a training share their fate: if one fails, the others notice and end by themselves.
// Those that do not are ended, in stages (Patience). A rank that ends because it was interrupted
// has not failed.
//
// A value: it is told what happened and when, and says what to do. Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "train/launch/ending.h"
#include "train/process/interrupt.h"

namespace penstock::train {

/// How long is waited for the ranks that run after a failure, before each stage; and for the rest
/// of a request that comes as several signals.
struct Patience {
  std::chrono::milliseconds terminate = std::chrono::seconds(5);  ///< SIGTERM is sent
  std::chrono::milliseconds kill = std::chrono::seconds(5);       ///< SIGKILL
  /// They are left alone: a process that waits for a dead drive cannot be killed.
  std::chrono::milliseconds leave = std::chrono::seconds(5);
  std::chrono::milliseconds one_request = kOneRequest;
};

class RankFates {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// What is to be done with the ranks that still run.
  enum class Order { kNone, kTerminate, kKill, kLeave };

  explicit RankFates(const Patience& patience) : patience_(patience) {}

  void Started() { ++running_; }
  /// A rank could not be started: those that run are ended without delay.
  void NotStarted(Time now);
  /// Whoever runs the launch sent a signal. Returns whether the ranks are to get it: not if it
  /// belongs to the first request (train/process/interrupt.h). The second request has them end at
  /// once; those that do not are ended as after a failure.
  bool Interrupted(int signal, Time now);
  /// Ranks have ended at about the same time. Returns the one that is the first failure of the
  /// launch, if there is one among them: of several, one that was killed rather than one that may
  /// have noticed that, and then the lowest. A rank that was killed also takes the place of a
  /// failure returned before that may have noticed it, until ranks are ended: the connections of a
  /// killed process are closed some time before it is seen to have ended.
  std::optional<Ending> Ended(std::span<const Ending> endings, Time now);

  /// When Due has an order.
  std::optional<Time> deadline() const;
  /// Returns what is to be done now; each order is given once.
  Order Due(Time now);

  /// Whether ranks end at once because the user says so, and may take each other's end for a
  /// failure.
  bool quitting() const { return quitting_; }
  /// Whether no rank runs, or none is waited for any longer.
  bool over() const { return running_ == 0 || left_; }
  /// That of the first failure; else 130 if a rank was interrupted, else 0.
  int exit_code() const { return exit_code_; }

 private:
  bool WasInterrupted(const Ending& ending) const;
  void Fail(int exit_code, Time when);

  Patience patience_;
  uint32_t running_ = 0;
  std::set<int> interruptions_;         ///< signals that came
  std::optional<Time> interrupted_at_;  ///< first
  bool quitting_ = false;
  bool failed_ = false;
  bool may_have_noticed_ = false;  ///< the first failure ended as those do that lose a peer
  int exit_code_ = 0;
  Order next_ = Order::kNone;
  Time next_at_;
  bool left_ = false;
};

}  // namespace penstock::train
