#include "train/loop/commit_schedule.h"

#include <cmath>
#include <utility>

#include "train/loop/metrics.h"

namespace penstock::train {
namespace {

/// Whether an event of every N steps (0: never) is due after the step of `row`.
bool IsDue(const StepRow& row, int64_t every) {
  if (every == 0) return false;
  const auto steps = static_cast<uint64_t>(every);
  return row.step / steps != row.previous_row.value_or(row.step - 1) / steps;
}

}  // namespace

void CommitSchedule::StepDone(const StepRow& row) {
  sound_ = std::isfinite(row.loss) && !row.skipped;
  if (IsDue(row, every_steps_)) due_ = true;
  if (keep_ == Keep::kNothing && IsDue(row, snapshot_every_steps_)) keep_ = Keep::kNext;
}

bool CommitSchedule::TimeIsUp(Time now) const {
  return every_seconds_ > 0 && ToSeconds(now - last_) >= every_seconds_;
}

void CommitSchedule::Begun() {
  due_ = false;
  if (keep_ == Keep::kNext) keep_ = Keep::kNewest;
}

bool CommitSchedule::TakeKeep(bool confirmed, bool copying) {
  if (keep_ != Keep::kNewest || copying || !confirmed) return false;
  keep_ = Keep::kNothing;
  return true;
}

}  // namespace penstock::train
