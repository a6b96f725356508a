// The loop over steps: what is left when a run fails, and what its user can do.
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "numerics/advice.h"
#include "train/loop/trainer_loop.h"
#include "zero/lr_schedule.h"

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

bool TrainLoop::MayResumeEarlier(const Status& commit) const {
  return options_.config.durable && !commit.ok() && commit.error().code == ErrorCode::kCorruption;
}

void TrainLoop::NoteDoubt(double loss) {
  const zero::Session& session = parts_.session;
  // A commit that this run did not make is not taken back, and may be as bad.
  const bool untried = session.untried() && !std::isfinite(loss);
  const bool doubtful = options_.config.durable && (session.commit_is_doubtful() || untried);
  const std::optional<uint64_t> now = doubtful ? session.committed_step() : std::nullopt;
  if (now == doubted_) return;
  doubted_ = now;
  parts_.note_doubt(now);
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
  if (doubted_) parts_.note_doubt(std::nullopt);  // it names no commit any more
  return fmt::format("; the commit of step {} was taken back, as no loss after it was finite",
                     **step);
}

std::string TrainLoop::WhatIsCommitted(const Error& failure) const {
  const std::optional<uint64_t> step = parts_.session.committed_step();
  if (!step) return "nothing was committed yet";
  const Status commit = parts_.session.CheckCommit();
  if (options_.config.durable || commit.ok()) {
    return CommittedIn(*step, parts_.session, failure) +
           (MayResumeEarlier(commit) ? "; --resume resumes from the commit before, if that is whole"
                                     : "");
  }
  return fmt::format(
      "step {} was committed, but without penstock.durable later steps take a commit "
      "back",
      *step);
}

std::optional<double> TrainLoop::LastLoss() const {
  // A search computes the step again, so the row knows better than the model.
  if (row_) return row_->loss;
  if (!computed_) return {};
  const Result<double> loss = parts_.model.Loss();
  return loss.ok() ? std::optional(*loss) : std::nullopt;
}

NumericEnd TrainLoop::HowItEnds(const std::optional<double>& loss) const {
  NumericEnd end{.forward_finite = !loss || std::isfinite(*loss),
                 .updated = parts_.session.state().optimizer_steps > 0};
  const std::optional<config::LossScaling>& scaling = options_.config.loss_scaling;
  if (!scaling) return end;
  end.dtype = DType::kFloat16;
  // The loss scale is at fault only if skipped steps or zeros ended the run.
  if (parts_.session.CheckSkips().ok()) return end;
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
  if (IsLost(commit)) {
    return fmt::format("; {}begin a new run: {}", MayResumeEarlier(commit) ? "otherwise " : "",
                       remedy);
  }
  if (!commit.ok()) return "";
  const std::string lower = fmt::format(
      "--change {}=LOWER",
      zero::KeyOfRate(options_.config.scheduler, parts_.session.state().optimizer_steps + 1));
  if (parts_.session.untried() && !end.forward_finite && other.empty()) {
    const char* const else_back =
        "go back to a snapshot (--resume-from SNAPSHOT), or begin a new run";
    const char* const seen = "; no loss that these weights gave since they were resumed was finite";
    if (!options_.config.durable) return fmt::format("{}: {}", seen, else_back);
    return fmt::format(
        "{}: the next --resume resumes from the commit before, if that is whole, as penstock "
        "inspect RUN says; give it {}, because the steps after that commit are repeated; otherwise "
        "{}",
        seen, lower, else_back);
  }
  // A streak whose first step was computed again has named it, and zeros are finite.
  const std::string replay =
      search_.first() || end.zero_gradient
          ? ""
          : fmt::format(
                "; penstock replay RUN --from latest --to {} finds the first value that is "
                "not finite, and says whose fault it is",
                failed);
  if (!other.empty()) return "; " + other + replay;
  return fmt::format(
      "; --resume repeats the steps after it as they were; to go on with a lower learning rate, "
      "give --resume {}{}",
      lower, replay);
}

}  // namespace penstock::train
