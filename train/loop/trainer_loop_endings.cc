// The loop over steps: what is left when a run fails, and what its user can do.
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "numerics/advice.h"
#include "train/loop/trainer_loop.h"

namespace penstock::train {
namespace {

/// Whether what CheckCommit says of a commit is that nothing brings it back: its file is gone, or
/// was damaged, or there is none.
bool IsLost(const Status& commit) {
  if (commit.ok()) return false;
  return commit.error().code == ErrorCode::kNotFound ||
         commit.error().code == ErrorCode::kCorruption;
}

}  // namespace

std::string CommittedIn(uint64_t step, const zero::Session& session, const Error& failure) {
  const Status commit = session.CheckCommit();
  const std::string files = fmt::format("{}", fmt::join(session.state_paths(), ", "));
  if (commit.ok()) return fmt::format("step {} is committed in {}", step, files);
  const std::string& why = commit.error().message;
  return fmt::format("step {} was committed in {}, {}{}", step, files,
                     IsLost(commit) ? "and that commit is lost" : "but it cannot be read back now",
                     failure.message.find(why) == std::string::npos ? ": " + why : "");
}

Status TrainLoop::NoteDoubt(double loss) {
  const zero::Session& session = parts_.session;
  // A commit that this run did not make is not taken back, and may be as bad.
  const bool untried = session.untried() && !std::isfinite(loss);
  const bool doubtful = options_.config.durable && (session.commit_is_doubtful() || untried);
  const std::optional<uint64_t> now = doubtful ? session.committed_step() : std::nullopt;
  if (now == doubted_) return {};
  doubted_ = now;
  return parts_.note_doubt(now);
}

std::string TrainLoop::TakeBackDoubtfulCommit() {
  if (parts_.snapshots != nullptr) parts_.snapshots->Wait();  // it may be copying that commit
  const Result<std::optional<uint64_t>> step = parts_.session.TakeBackDoubtfulCommit();
  if (!step.ok()) {
    return fmt::format("; a commit after which no loss was finite could not be taken back: {}",
                       step.error().message);
  }
  if (!*step && parts_.session.commit_is_doubtful()) {
    return "; no loss after the last commit was finite, and no other commit is left";
  }
  if (!*step) return "";
  if (doubted_) static_cast<void>(parts_.note_doubt(std::nullopt));  // it names no commit any more
  return fmt::format("; the commit of step {} was taken back, as no loss after it was finite",
                     **step);
}

std::string TrainLoop::WhatIsCommitted(const Error& failure) const {
  const std::optional<uint64_t> step = parts_.session.committed_step();
  if (!step) return "nothing was committed yet";
  if (options_.config.durable || parts_.session.CheckCommit().ok()) {
    return CommittedIn(*step, parts_.session, failure);
  }
  return fmt::format(
      "step {} was committed, but without penstock.durable later steps take a commit "
      "back",
      *step);
}

NumericEnd TrainLoop::HowItEnds() const {
  NumericEnd end{.forward_finite = !row_.has_value() || std::isfinite(row_->loss),
                 .updated = !begins_run_ || summary_.skipped < summary_.steps ||
                            (row_.has_value() && !row_->skipped)};
  const std::optional<config::LossScaling>& scaling = options_.config.loss_scaling;
  if (!scaling) return end;
  end.dtype = DType::kFloat16;
  end.static_scale = scaling->loss_scale;
  end.zero_gradient = row_.has_value() && !row_->skipped && row_->grad_norm == 0;
  const bool at_minimum = row_.has_value() && row_->loss_scale <= scaling->min_loss_scale;
  if (scaling->loss_scale == 0 && at_minimum) end.min_scale = scaling->min_loss_scale;
  return end;
}

std::string TrainLoop::HowToGoOn(uint64_t failed, const NumericEnd& end) const {
  const std::string other = OtherRemedy(end);
  const std::string remedy = other.empty() ? "a lower learning rate may help" : other;
  if (!parts_.session.committed_step()) return "; " + remedy;
  const Status commit = parts_.session.CheckCommit();
  if (IsLost(commit)) return "; begin a new run: " + remedy;
  if (!commit.ok()) return "";
  if (parts_.session.untried() && other.empty()) {
    return "; no loss that these weights gave since they were resumed was finite, so a lower "
           "learning rate does not help: penstock inspect RUN says whether they are healthy, and "
           "whether the commit before is whole: then the next --resume goes back to it; otherwise "
           "go back to a snapshot (--resume-from SNAPSHOT), or begin a new run";
  }
  // A streak whose first step was computed again has named it.
  const std::string replay =
      search_.first()
          ? ""
          : fmt::format(
                "; penstock replay RUN --from latest --to {} finds the first value that is "
                "not finite, and says whose fault it is",
                failed);
  if (!other.empty()) return "; " + other + replay;
  return "; --resume repeats the steps after it as they were; to go on with a lower learning rate, "
         "give --resume --change optimizer.params.lr=LOWER" +
         replay;
}

}  // namespace penstock::train
