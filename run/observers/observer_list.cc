#include "run/observers/observer_list.h"

#include <algorithm>

namespace penstock::train {

void ObserverList::Add(Turn turn, StepObserver& observer) {
  const auto after =
      std::ranges::upper_bound(observers_, turn, {}, &std::pair<Turn, StepObserver*>::first);
  observers_.insert(after, {turn, &observer});
}

template <typename Call>
void ObserverList::Each(Call call) {
  for (const auto& of_turn : observers_) call(*of_turn.second);
}

template <typename Call>
Status ObserverList::UntilOneFails(Call call) {
  for (const auto& of_turn : observers_) PENSTOCK_TRY(call(*of_turn.second));
  return {};
}

void ObserverList::Doing(std::string_view what, uint64_t step) {
  Each([&](StepObserver& each) { each.Doing(what, step); });
}

Status ObserverList::AfterStep(DoneStep& step) {
  return UntilOneFails([&](StepObserver& each) { return each.AfterStep(step); });
}

Status ObserverList::AfterRow(const ClosedRow& closed) {
  return UntilOneFails([&](StepObserver& each) { return each.AfterRow(closed); });
}

void ObserverList::ReleaseCommit() {
  Each([](StepObserver& each) { each.ReleaseCommit(); });
}

Status ObserverList::SyncRows() {
  return UntilOneFails([](StepObserver& each) { return each.SyncRows(); });
}

Status ObserverList::AfterCommit() {
  return UntilOneFails([](StepObserver& each) { return each.AfterCommit(); });
}

void ObserverList::CommitRefused(uint64_t step, const std::string& why) {
  Each([&](StepObserver& each) { each.CommitRefused(step, why); });
}

void ObserverList::KeepCommit() {
  Each([](StepObserver& each) { each.KeepCommit(); });
}

void ObserverList::Failing(const Error& why, const std::optional<uint64_t>& doubted_commit) {
  Each([&](StepObserver& each) { each.Failing(why, doubted_commit); });
}

void ObserverList::AtEnd(const TrainingEnd& end) {
  Each([&](StepObserver& each) { each.AtEnd(end); });
}

}  // namespace penstock::train
