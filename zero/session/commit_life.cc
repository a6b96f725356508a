#include "zero/session/commit_life.h"

#include <utility>

#include "base/check.h"

namespace penstock::zero {

void CommitLife::Begin(uint64_t step, bool confirmed) {
  PENSTOCK_CHECK(!pending_, "a commit was begun before the last one was finished");
  PENSTOCK_CHECK(!doubtful(), "a commit was begun over the last one that is good");
  pending_ = Commit{.step = step, .confirmed = confirmed};
}

void CommitLife::MadeDurable() {
  PENSTOCK_CHECK(pending_.has_value());
  before_ = newest_;
  newest_ = std::exchange(pending_, std::nullopt);
}

void CommitLife::Failed() {
  PENSTOCK_CHECK(pending_.has_value());
  pending_.reset();
}

void CommitLife::Dropped() {
  PENSTOCK_CHECK(pending_.has_value());
  const Commit dropped = *std::exchange(pending_, std::nullopt);
  if (!newest_) return;
  newest_->confirmed = newest_->confirmed || dropped.confirmed;
  newest_->doubted = newest_->doubted || dropped.doubted;
}

void CommitLife::ForwardDone(bool finite) {
  std::optional<Commit>& commit = pending_ ? pending_ : newest_;
  if (!commit) return;
  (finite ? commit->confirmed : commit->doubted) = true;
}

void CommitLife::Retract(bool before_stands) {
  PENSTOCK_CHECK(retractable());
  newest_ = before_stands ? before_ : std::nullopt;
  before_.reset();
}

std::optional<uint64_t> CommitLife::newest() const {
  if (!newest_) return std::nullopt;
  return newest_->step;
}

}  // namespace penstock::zero
