#include "sim/cores.h"

#include <algorithm>
#include <utility>

namespace penstock::sim {
/// The speed of every job, relative to that of a job alone.
double Cores::Speed() const { return threads_ <= cores_ ? 1 : cores_ / threads_; }

void Cores::Pass() {
  const Seconds work = (clock_.now() - passed_until_) * Speed();
  for (Job& job : jobs_) job.left -= work;
  passed_until_ = clock_.now();
}

void Cores::Work(Seconds time, double threads, std::function<void()> done) {
  Pass();
  jobs_.push_back({time, threads, std::move(done)});
  threads_ += threads;
  PlanNext();
}

void Cores::PlanNext() {
  ++plan_;
  if (jobs_.empty()) return;
  const auto by_rest = [](const Job& a, const Job& b) { return a.left < b.left; };
  const auto next = std::ranges::min_element(jobs_, by_rest);
  clock_.After(std::max(next->left, 0.0) / Speed(), [this, plan = plan_, next]() {
    if (plan != plan_) return;
    Pass();
    next->left = 0;  // removes a rounding error
    Finish();
  });
}

void Cores::Finish() {
  std::list<Job> finished;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto at = job++;
    if (at->left <= 0) finished.splice(finished.end(), jobs_, at);
  }
  for (const Job& job : finished) threads_ -= job.threads;
  PlanNext();
  for (const Job& job : finished) job.done();
}

}  // namespace penstock::sim
