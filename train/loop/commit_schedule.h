// When a training commits, and which commits are kept as automatic snapshots.
//
// A commit is due every N steps or seconds, on request, and for an automatic snapshot. It waits for
// a sound step, and no commit replaces one that is being copied or is to be kept as a snapshot.
// Such a commit is kept once a finite loss has confirmed it.
//
// A plain value, alike on all ranks. Threads: one.
#pragma once

#include <chrono>
#include <cstdint>

#include "config/config.h"
#include "run/rows/metrics_file.h"

namespace penstock::train {

class CommitSchedule {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `sound`: the weights may be committed as they are.
  CommitSchedule(const config::Config& config, bool sound)
      : every_steps_(config.commit_every_steps),
        every_seconds_(config.commit_every_seconds),
        snapshot_every_steps_(config.snapshot_every_steps),
        sound_(sound) {}

  /// Says that the training begins.
  void Begin(Time now) { last_ = now; }
  /// Notes in `row` how a step ended, and the row before it.
  void StepDone(const StepRow& row);
  /// Whether a commit is due by the clock.
  bool TimeIsUp(Time now) const;
  /// Whether one may be made between these two steps,
  bool MayCommit(bool copying) const { return sound_ && !copying && keep_ != Keep::kNewest; }
  /// and whether one is due without a request.
  bool Due() const { return due_ || keep_ == Keep::kNext; }
  /// Note that a commit was begun, and that it was made.
  void Begun();
  void Made(Time now) { last_ = now; }
  /// Whether the newest commit is to be kept now. The caller then keeps it.
  bool TakeKeep(bool confirmed, bool copying);

 private:
  /// The state of an automatic snapshot.
  enum class Keep { kNothing, kNext, kNewest };

  const int64_t every_steps_;
  const double every_seconds_;
  const int64_t snapshot_every_steps_;
  /// Whether the last step had a finite loss and gradient.
  bool sound_;
  bool due_ = false;  ///< due by the number of steps
  Keep keep_ = Keep::kNothing;
  Time last_;  ///< commit
};

}  // namespace penstock::train
