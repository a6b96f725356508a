#include "base/activity.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {

ActivityMeter::ActivityMeter(Trace* trace) : trace_(trace) { moments_.reserve(2 * kKept); }

void ActivityMeter::Summed::AdvanceTo(Clock::time_point now) {
  if (now <= until) return;
  const auto elapsed = now - until;
  const auto is_busy = [&](Lane lane) { return busy[static_cast<size_t>(lane)] > 0; };
  if (is_busy(Lane::kCompute)) totals.compute += elapsed;
  if (is_busy(Lane::kDataWait) && !is_busy(Lane::kCompute)) totals.io_wait += elapsed;
  if (is_busy(Lane::kOptimizer)) totals.optimizer += elapsed;
  if (is_busy(Lane::kUpdate)) totals.update += elapsed;
  if (is_busy(Lane::kUpdate) && is_busy(Lane::kCompute)) totals.update_hidden += elapsed;
  if (is_busy(Lane::kRanks) && !is_busy(Lane::kCompute)) totals.comm_wait += elapsed;
  until = now;
}

void ActivityMeter::Summed::Apply(const Moment& moment) {
  AdvanceTo(moment.at);
  busy[static_cast<size_t>(moment.lane)] += moment.change;
}

void ActivityMeter::Change(Lane lane, int by) {
  MutexLock lock(mutex_);
  int& begun = begun_[static_cast<size_t>(lane)];
  begun += by;
  PENSTOCK_CHECK(begun >= 0, "lane {} ended more often than it began", static_cast<int>(lane));
  Keep({.at = Clock::now(), .lane = lane, .change = by});
}

void ActivityMeter::Add(Lane lane, Clock::time_point begin, Clock::time_point end) {
  if (end <= begin) return;
  MutexLock lock(mutex_);
  Keep({.at = begin, .lane = lane, .change = +1});
  Keep({.at = end, .lane = lane, .change = -1});
}

void ActivityMeter::Keep(const Moment& moment) {
  moments_.push_back(moment);
  if (moments_.size() < 2 * kKept) return;
  std::ranges::stable_sort(moments_, {}, &Moment::at);
  for (size_t i = 0; i < kKept; ++i) summed_.Apply(moments_[i]);
  moments_.erase(moments_.begin(), moments_.begin() + kKept);
}

ActivityTotals ActivityMeter::Totals() const {
  MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::ranges::stable_sort(moments_, {}, &Moment::at);
  Summed summed = summed_;
  for (const Moment& moment : moments_) {
    if (moment.at > now) break;
    summed.Apply(moment);
  }
  summed.AdvanceTo(now);
  return summed.totals;
}

}  // namespace penstock
