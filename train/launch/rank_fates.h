// Decides what one rank's end means for the others, and with which code the launch ends.
//
// If one rank of a training fails, the others notice and end by themselves. Those that do not are
// ended, in stages (Patience). A rank that ends because it was interrupted has not failed.
//
// A plain value: events with their times go in, orders come out. Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "train/launch/ending.h"
#include "train/process/interrupt.h"

namespace penstock::train {

/// How long the launch waits for running ranks after a failure, before each stage; and for the
/// other signals of one request.
struct Patience {
  std::chrono::milliseconds terminate = std::chrono::seconds(5);  ///< SIGTERM is sent
  std::chrono::milliseconds kill = std::chrono::seconds(5);       ///< SIGKILL
  /// Then they are given up: a process that waits for a dead drive cannot be killed.
  std::chrono::milliseconds leave = std::chrono::seconds(5);
  std::chrono::milliseconds one_request = kOneRequest;
};

class RankFates {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// An order for the ranks that still run.
  enum class Order { kNone, kTerminate, kKill, kLeave };

  explicit RankFates(const Patience& patience) : patience_(patience) {}

  void Started() { ++running_; }
  /// A rank could not be started: those that run are ended without delay.
  void NotStarted(Time now);
  /// The user sent the launch a signal. Returns whether the ranks are to get it: not if it belongs
  /// to the first request (train/process/interrupt.h). At the second request they end at once;
  /// those that do not are ended as after a failure.
  bool Interrupted(int signal, Time now);
  /// Ranks have ended at about the same time. Returns the one that is the first failure of the
  /// launch, if any: a killed rank before one that may have noticed that, then the lowest. A killed
  /// rank also replaces an earlier returned failure that may have noticed it, until ranks are
  /// ended: the connections of a killed process close some time before its end is seen.
  std::optional<Ending> Ended(std::span<const Ending> endings, Time now);

  /// The time at which Due has an order.
  std::optional<Time> deadline() const;
  /// Returns the order that is due now; each is given once.
  Order Due(Time now);

  /// Whether ranks end at once at the user's request, and may mistake each other's end for a
  /// failure.
  bool quitting() const { return quitting_; }
  /// Whether no rank runs, or all running ones are given up.
  bool over() const { return running_ == 0 || left_; }
  /// The exit code: that of the first failure; else 130 if a rank was interrupted, else 0.
  int exit_code() const { return exit_code_; }

 private:
  bool WasInterrupted(const Ending& ending) const;
  void Fail(int exit_code, Time when);

  Patience patience_;
  uint32_t running_ = 0;
  std::set<int> interruptions_;         ///< received signals
  std::optional<Time> interrupted_at_;  ///< first
  bool quitting_ = false;
  bool failed_ = false;
  bool may_have_noticed_ = false;  ///< the first failure may be due to a lost peer
  int exit_code_ = 0;
  Order next_ = Order::kNone;
  Time next_at_;
  bool left_ = false;
};

}  // namespace penstock::train
