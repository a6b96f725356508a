#include "base/activity.h"

#include "base/check.h"

namespace penstock {

ActivityTotals ActivityMeter::Advanced(std::chrono::steady_clock::time_point now) const {
  ActivityTotals totals = totals_;
  const auto elapsed = now - last_;
  const bool computing = busy_[static_cast<size_t>(Lane::kCompute)] > 0;
  const bool waiting = busy_[static_cast<size_t>(Lane::kDataWait)] > 0;
  const bool optimizing = busy_[static_cast<size_t>(Lane::kOptimizer)] > 0;
  const bool updating = busy_[static_cast<size_t>(Lane::kUpdate)] > 0;
  if (computing) totals.compute += elapsed;
  if (waiting && !computing) totals.io_wait += elapsed;
  if (optimizing) totals.optimizer += elapsed;
  if (updating) totals.update += elapsed;
  if (updating && computing) totals.update_hidden += elapsed;
  return totals;
}

void ActivityMeter::Change(Lane lane, int by) {
  MutexLock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  totals_ = Advanced(now);
  last_ = now;
  int& busy = busy_[static_cast<size_t>(lane)];
  busy += by;
  PENSTOCK_CHECK(busy >= 0, "lane {} ended more often than it began", static_cast<int>(lane));
}

ActivityTotals ActivityMeter::Totals() const {
  MutexLock lock(mutex_);
  return Advanced(std::chrono::steady_clock::now());
}

}  // namespace penstock
