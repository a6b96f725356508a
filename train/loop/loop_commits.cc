#include "train/loop/loop_commits.h"

#include <utility>

namespace penstock::train {

LoopCommits::LoopCommits(zero::Session& session, RankNotes& notes, StepObserver& observers,
                         const config::Config& config)
    : session_(session),
      notes_(notes),
      observers_(observers),
      schedule_(config, session.state().skipped_in_a_row == 0) {}

LoopCommits::~LoopCommits() {
  if (pending_) static_cast<void>(session_.FinishCommit());
}

bool LoopCommits::Due() const {
  return schedule_.MayCommit(notes_.Copying()) &&
         (schedule_.Due() || notes_.CommitWanted(TimeIsUp()));
}

void LoopCommits::KeepIfConfirmed() {
  if (!schedule_.TakeKeep(session_.commit_is_confirmed(), notes_.Copying())) return;
  notes_.CopyBegins();
  observers_.KeepCommit();
}

Status LoopCommits::Begin(std::string text) {
  schedule_.Begun();
  observers_.ReleaseCommit();
  // Earlier rows reach the drive before the commit that relies on them. If they cannot, the commit
  // is still made: it contains its own row.
  PENSTOCK_TRY(session_.BeginCommit(std::move(text), [this] {
    rows_synced_ = observers_.SyncRows();
    return Status();
  }));
  pending_ = session_.state().step;
  return {};
}

Status LoopCommits::Await() {
  const std::optional<uint64_t> step = std::exchange(pending_, std::nullopt);
  if (!step) return {};
  observers_.Doing("waits for the commit of", *step);
  Status made = session_.FinishCommit();
  if (!made.ok() && made.error().code == ErrorCode::kNumeric) {
    observers_.CommitRefused(*step, made.error().message);
  }
  return made;
}

Status LoopCommits::Finish() {
  if (!pending_) return {};
  PENSTOCK_TRY(Await());
  PENSTOCK_TRY(observers_.AfterCommit());
  schedule_.Made(std::chrono::steady_clock::now());
  return rows_synced_;
}

Status LoopCommits::AwaitCopy() {
  if (notes_.alone() || !notes_.Copying()) return {};
  observers_.ReleaseCommit();
  return ExchangeNotes();
}

}  // namespace penstock::train
