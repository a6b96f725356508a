#include "train/loop/run_failure.h"

#include <fmt/ranges.h>

#include <cmath>

#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

/// Whether CheckCommit's result means that a commit is lost: its file is gone, or damaged, or there
/// is none.
bool IsLost(const Status& commit) {
  if (commit.ok()) return false;
  return commit.error().code == ErrorCode::kNotFound ||
         commit.error().code == ErrorCode::kCorruption;
}

/// Whether a resume may use the commit before the newest one, given CheckCommit's result for that.
bool MayResumeEarlier(const Status& commit, bool durable) {
  return durable && !commit.ok() && commit.error().code == ErrorCode::kCorruption;
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

TakenBack TakeBackDoubtfulCommit(zero::Session& session) {
  const Result<std::optional<uint64_t>> step = session.TakeBackDoubtfulCommit();
  if (!step.ok()) {
    return {.text =
                fmt::format("; a commit after which no loss was finite could not be taken back: {}",
                            step.error().message)};
  }
  if (!*step && session.commit_is_doubtful()) {
    return {.text = "; no loss after the last commit was finite, and no other commit is left"};
  }
  if (!*step) return {};
  return {.taken = true,
          .text = fmt::format(
              "; the commit of step {} was taken back, as no loss after it was finite", **step)};
}

std::string WhatIsCommitted(const zero::Session& session, bool durable, const Error& failure) {
  const std::optional<uint64_t> step = session.committed_step();
  if (!step) return "nothing was committed yet";
  const Status commit = session.CheckCommit();
  if (durable || commit.ok()) {
    return CommittedIn(*step, session, failure) +
           (MayResumeEarlier(commit, durable)
                ? "; --resume resumes from the commit before, if that is intact"
                : "");
  }
  return fmt::format(
      "step {} was committed, but without penstock.durable a later step discards a "
      "commit",
      *step);
}

NumericEnd HowItEnds(const std::optional<double>& loss, const std::optional<StepRow>& row,
                     const zero::Session& session, const config::Config& config) {
  NumericEnd end{.forward_finite = !loss || std::isfinite(*loss),
                 .updated = session.state().optimizer_steps > 0};
  const std::optional<config::LossScaling>& scaling = config.loss_scaling;
  if (!scaling) return end;
  end.dtype = DType::kFloat16;
  // The loss scale is the cause only if skipped steps or zeros ended the run.
  if (session.CheckSkips().ok()) return end;
  end.static_scale = scaling->loss_scale;
  end.zero_gradient = row.has_value() && !row->skipped && row->grad_norm == 0;
  const bool at_minimum = row.has_value() && row->loss_scale <= scaling->min_loss_scale;
  if (scaling->loss_scale == 0 && at_minimum) end.min_scale = scaling->min_loss_scale;
  return end;
}

std::string HowToGoOn(const NumericFailure& failure, const zero::Session& session,
                      const config::Config& config) {
  const NumericEnd& end = failure.end;
  const std::string other = OtherRemedy(end);
  const std::string remedy = other.empty() ? "a lower learning rate may help" : other;
  if (!session.committed_step()) return "; " + remedy;
  const Status commit = session.CheckCommit();
  if (IsLost(commit)) {
    return fmt::format("; {}begin a new run: {}",
                       MayResumeEarlier(commit, config.durable) ? "otherwise " : "", remedy);
  }
  if (!commit.ok()) return "";
  const std::string lower = fmt::format(
      "--change {}=LOWER", zero::KeyOfRate(config.scheduler, session.state().optimizer_steps + 1));
  if (session.untried() && !end.forward_finite && other.empty()) {
    const char* const else_back =
        "go back to a snapshot (--resume-from SNAPSHOT), or begin a new run";
    const char* const seen = "; no loss since the resume was finite";
    if (!config.durable) return fmt::format("{}: {}", seen, else_back);
    return fmt::format(
        "{}: the next --resume resumes from the commit before, if that is intact (penstock "
        "inspect RUN tells); give it {}, because it repeats the steps after that commit; otherwise "
        "{}",
        seen, lower, else_back);
  }
  // A search of the streak's first step has named it already, and zeros are finite.
  const std::string replay =
      failure.first_is_known || end.zero_gradient
          ? ""
          : fmt::format(
                "; penstock replay RUN --from latest --to {} finds the first non-finite value "
                "and its cause",
                failure.step);
  if (!other.empty()) return "; " + other + replay;
  return fmt::format(
      "; --resume repeats the steps after it unchanged; to resume with a lower learning rate, "
      "give --resume {}{}",
      lower, replay);
}

}  // namespace penstock::train
