// The loop over steps: when commits are made, what they keep beside the state, and when one is kept
// as a snapshot.
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "run/committed_run.h"
#include "train/loop/trainer_loop.h"

namespace penstock::train {

bool TrainLoop::CommitDue() const {
  if (!sound_ || parts_.session.state().step == options_.last_step)
    return false;  // the final commit is next
  if (CopyKnown() || keep_ == Keep::kNewestCommit) return false;
  return commit_due_ || keep_ == Keep::kNextCommit || (alone() ? CommitWanted() : commit_wanted_);
}

void TrainLoop::KeepCommit() {
  if (keep_ != Keep::kNewestCommit || CopyKnown() || !parts_.session.commit_is_confirmed()) return;
  keep_ = Keep::kNothing;
  copying_ = true;
  if (parts_.snapshots != nullptr) {
    parts_.snapshots->KeepAutomatically(static_cast<uint64_t>(options_.config.keep_snapshots));
  }
}

bool TrainLoop::CommitWanted() const {
  if (parts_.snapshots != nullptr && parts_.snapshots->Requested()) return true;
  const double since = ToSeconds(std::chrono::steady_clock::now() - last_commit_);
  const double every = options_.config.commit_every_seconds;
  return every > 0 && since >= every;
}

Status TrainLoop::BeginCommit() {
  commit_due_ = false;
  if (keep_ == Keep::kNextCommit) keep_ = Keep::kNewestCommit;
  nlohmann::ordered_json json = {{"run", nlohmann::ordered_json::parse(options_.run_json)}};
  if (row_.has_value()) {
    // The row reaches metrics.jsonl only when the next step starts: without this copy a crash in
    // between would leave a committed step without its row.
    StepRow row = *row_;
    Measure(row_begin_, Now(), options_.cost, &row);
    json["row"] = nlohmann::ordered_json::parse(ToJson(row));
  }
  if (options_.config.rampup || options_.keeps_consumed_samples) {
    json[kConsumedSamples] = consumed_samples_;
  }
  if (parts_.snapshots != nullptr) parts_.snapshots->Wait();
  // Earlier rows reach the drive before the commit that relies on them. If they cannot, the commit
  // is made all the same: its own row is in it.
  PENSTOCK_TRY(parts_.session.BeginCommit(json.dump(), [this] {
    if (parts_.metrics != nullptr) rows_synced_ = parts_.metrics->Sync();
    if (parts_.monitor != nullptr && rows_synced_.ok()) rows_synced_ = parts_.monitor->Sync();
    return Status();
  }));
  committing_ = parts_.session.state().step;
  return {};
}

Status TrainLoop::AwaitCommit() {
  const std::optional<uint64_t> step = std::exchange(committing_, std::nullopt);
  if (!step) return {};
  Doing("waits for the commit of", *step);
  Status made = parts_.session.FinishCommit();
  if (!made.ok() && made.error().code == ErrorCode::kNumeric && parts_.watch != nullptr) {
    parts_.watch->CommitRefused(*step, made.error().message);
  }
  return made;
}

Status TrainLoop::FinishCommit() {
  if (!committing_) return {};
  PENSTOCK_TRY(AwaitCommit());
  PENSTOCK_TRY(parts_.hold_commit());
  last_commit_ = std::chrono::steady_clock::now();
  parts_.keep_folder();
  if (parts_.snapshots != nullptr) parts_.snapshots->CommitMade();
  return rows_synced_;
}

Status TrainLoop::CommitLast() {
  PENSTOCK_TRY(FinishCommit());
  const uint64_t step = parts_.session.state().step;
  if (parts_.session.committed_step() == step) return {};
  // The loss of a skipped step does not speak against weights that gave a finite one, with other
  // data.
  if (row_.has_value() && !std::isfinite(row_->loss) && !parts_.session.proven()) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the loss is not finite, and what the weights are now is not "
                     "committed",
                     step);
  }
  if (!StopRequested()) KeepCommit();
  PENSTOCK_TRY(AwaitCopy());
  PENSTOCK_TRY(BeginCommit());
  return FinishCommit();
}

Status TrainLoop::AwaitCopy() {
  if (alone() || !copying_) return {};
  if (parts_.snapshots != nullptr) parts_.snapshots->Wait();
  PENSTOCK_ASSIGN(std::vector<zero::StepNote> notes, parts_.exchange_notes(Note()));
  TakeNotes(std::move(notes));
  return {};
}

}  // namespace penstock::train
