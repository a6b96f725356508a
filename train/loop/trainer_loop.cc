#include "train/loop/trainer_loop.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "run/committed_run.h"
#include "train/loop/run_failure.h"
#include "train/process/log.h"

namespace penstock::train {

namespace {

/// Max number of named rows of a step.
constexpr uint64_t kNamedRows = 16;

/// The row of a step, without the values measured at its end.
StepRow RowOf(const zero::StepOutcome& outcome, double loss) {
  StepRow row;
  row.step = outcome.step;
  row.loss = loss;
  row.grad_norm = outcome.grad_norm;
  row.lr = outcome.lr;
  row.loss_scale = outcome.loss_scale;
  row.skipped = outcome.skipped;
  return row;
}

}  // namespace

TrainLoop::TrainLoop(LoopParts parts, LoopOptions options)
    : parts_(parts),
      options_(std::move(options)),
      commits_(parts.session, parts.notes, parts.observers, options_.config) {}

Result<LoopSummary> TrainLoop::Run() {
  const Status done = RunSteps();
  if (!done.ok()) return Fail(done.error());
  parts_.observers.AtEnd({.step = summary_.last_step, .doubted_commit = doubted_});
  return summary_;
}

Status TrainLoop::RunSteps() {
  summary_.begin = parts_.notes.Now();
  // Initialisation reads nothing: all reads ahead since then belong to the first step.
  summary_.begin.counters.nvme_read_bytes = 0;
  row_begin_ = summary_.begin;
  commits_.BeginSteps();
  PENSTOCK_TRY(BeginRun());
  const offload::CommitHead& state = parts_.session.state();
  while (state.step < options_.last_step && !parts_.notes.StopRequested()) {
    PENSTOCK_TRY(EndRow());
    PENSTOCK_TRY(RunStep());
    PENSTOCK_TRY(parts_.session.CheckSkips());
    // After the last step the final commit is next.
    if (state.step < options_.last_step && commits_.Due()) PENSTOCK_TRY(BeginCommit());
    if (!options_.config.overlap) PENSTOCK_TRY(commits_.Finish());
  }
  return EndRun();
}

Status TrainLoop::BeginRun() {
  // With one slot, the first update would discard the commit.
  const bool is_new = !parts_.session.committed_step() && options_.config.durable;
  if (!is_new || parts_.session.state().step >= options_.last_step) return {};
  begins_run_ = true;
  PENSTOCK_TRY(BeginCommit());
  return options_.config.overlap ? Status() : commits_.Finish();
}

Status TrainLoop::PassOver() {
  for (const StepRange& range : options_.skips) {
    const uint64_t done = parts_.session.state().step;
    if (!range.Has(done + 1)) continue;
    PENSTOCK_TRY(parts_.session.PassOver(range.last));
    parts_.batch.PassOver(range.last - done);
    LogNotice(fmt::format("steps {} to {} are passed over", range.first, range.last));
  }
  return {};
}

Status TrainLoop::RunStep() {
  zero::Session& session = parts_.session;
  StepBatch& batch = parts_.batch;
  const uint64_t before = session.state().step;
  PENSTOCK_TRY(PassOver());
  const uint64_t number = session.state().step + 1;
  parts_.observers.Doing("reads the data of", number);
  PENSTOCK_TRY(batch.Read());
  if (number == options_.last_step) session.ExpectLastStep();
  PENSTOCK_ASSIGN(zero::Step step, session.BeginStep(batch.micro_batches()));
  PENSTOCK_TRY(parts_.model.ForwardBackward(step, batch.inputs(), batch.targets()));
  computed_ = true;
  PENSTOCK_TRY(commits_.Finish());
  commits_.KeepIfConfirmed();
  const double loss_scale = step.loss_scale();
  PENSTOCK_ASSIGN(zero::StepOutcome outcome, step.Finish(commits_.Note()));
  parts_.notes.Take(std::move(outcome.notes));
  PENSTOCK_ASSIGN(const double loss, parts_.model.Loss());
  doubted_ = session.life().Doubted(std::isfinite(loss));

  StepRow row = RowOf(outcome, loss);
  row.tokens = batch.tokens();
  row.world_size = parts_.notes.world().size;
  if (before + 1 < row.step) row.previous_row = before;
  if (summary_.steps == 0) row.changed = options_.changed;
  if (options_.config.wall_clock_breakdown) {
    row.forward_s = ToSeconds(outcome.loss_at - row_begin_.time);
    row.backward_s = ToSeconds(outcome.gradients_at - outcome.loss_at);
  }
  PENSTOCK_TRY(TellOf(row, loss_scale));
  batch.Done();
  commits_.StepDone(row);
  Count(row);
  row_ = row;
  return {};
}

Status TrainLoop::TellOf(const StepRow& row, double loss_scale) {
  DoneStep step{.numbers = {.step = row.step,
                            .loss = row.loss,
                            .forward_finite = std::isfinite(row.loss),
                            .grad_norm = row.grad_norm,
                            .loss_scale = loss_scale,
                            .skipped = row.skipped,
                            .lr = row.lr,
                            .steps_to_stop = parts_.session.SkipsToTheEnd(),
                            .rows = parts_.batch.FirstRows(kNamedRows)},
                .skipped_in_a_row = parts_.session.state().skipped_in_a_row,
                .figures = parts_.session.figures(),
                .doubted_commit = doubted_,
                .waited = parts_.notes.Waited()};
  for (const LayerMagnitudes& layer : parts_.model.Magnitudes()) {
    step.numbers.layers.push_back({.attention = layer.attention, .residual = layer.residual});
  }
  PENSTOCK_TRY(parts_.observers.AfterStep(step));
  first_is_known_ = step.numbers.first.has_value();
  return {};
}

void TrainLoop::Count(const StepRow& row) {
  summary_.steps += 1;
  summary_.skipped += row.skipped ? 1 : 0;
  summary_.tokens += row.tokens;
  if (!summary_.first_loss.has_value()) summary_.first_loss = row.loss;
  summary_.last_loss = row.loss;
}

Status TrainLoop::CloseRow(const Reading& now) {
  if (!row_.has_value()) return {};
  Measure(row_begin_, now, options_.cost, &*row_);
  PENSTOCK_TRY(parts_.observers.AfterRow({.row = *row_,
                                          .samples = parts_.batch.consumed_samples(),
                                          .begin = row_begin_.time,
                                          .end = now.time}));
  row_.reset();
  row_begin_ = now;
  return {};
}

Status TrainLoop::EndRow() {
  Status written = CloseRow(parts_.notes.Now());
  if (written.ok() || !parts_.notes.alone()) return written;
  const Status committed = CommitLast();
  if (committed.ok()) return written;
  return Error{written.error().code,
               fmt::format("{}; {}", written.error().message, committed.error().message)};
}

Status TrainLoop::BeginCommit() {
  nlohmann::ordered_json json = {{"run", nlohmann::ordered_json::parse(options_.run_json)}};
  if (row_.has_value()) {
    // The row reaches metrics.jsonl only when the next step starts: without this copy a crash in
    // between would leave a committed step without its row.
    StepRow row = *row_;
    Measure(row_begin_, parts_.notes.Now(), options_.cost, &row);
    json["row"] = nlohmann::ordered_json::parse(ToJson(row));
  }
  if (options_.config.rampup || options_.keeps_consumed_samples) {
    json[kConsumedSamples] = parts_.batch.consumed_samples();
  }
  return commits_.Begin(json.dump());
}

Status TrainLoop::CommitLast() {
  PENSTOCK_TRY(commits_.Finish());
  const uint64_t step = parts_.session.state().step;
  if (parts_.session.committed_step() == step) return {};
  // A non-finite loss does not put weights in doubt that gave a finite loss with other data.
  if (row_.has_value() && !std::isfinite(row_->loss) && !parts_.session.proven()) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the loss is not finite, and what the weights are now is not "
                     "committed",
                     step);
  }
  if (!parts_.notes.StopRequested()) commits_.KeepIfConfirmed();
  PENSTOCK_TRY(commits_.AwaitCopy());
  PENSTOCK_TRY(BeginCommit());
  return commits_.Finish();
}

Status TrainLoop::EndRun() {
  PENSTOCK_TRY(options_.commits_last ? CommitLast() : parts_.session.Drain());
  if (!parts_.notes.alone()) {
    PENSTOCK_TRY(parts_.session.Drain());
    PENSTOCK_TRY(commits_.ExchangeNotes());
  }
  summary_.end = parts_.notes.Now();
  PENSTOCK_TRY(CloseRow(summary_.end));
  if (options_.commits_last) PENSTOCK_TRY(parts_.session.CheckCommit());
  summary_.last_step = parts_.session.state().step;
  summary_.committed_step = parts_.session.committed_step().value_or(0);
  summary_.interrupted = summary_.last_step < options_.last_step;
  return {};
}

Error TrainLoop::Fail(const Error& why) {
  zero::Session& session = parts_.session;
  const config::Config& config = options_.config;
  const bool numeric = why.code == ErrorCode::kNumeric;
  const std::optional<double> loss = numeric ? LastLoss() : std::nullopt;
  // A step that ended the run because of its gradient was not finished, but its loss counts.
  if (loss) doubted_ = session.life().Doubted(std::isfinite(*loss));
  // An unfinished step has no row.
  const NumericFailure failure{.step = row_.has_value() ? row_->step : session.state().step + 1,
                               .end = HowItEnds(loss, row_, session, config),
                               .first_is_known = first_is_known_};
  parts_.observers.Failing(why, doubted_);
  // The state of the commits is known once a commit in progress has ended. A step that waited for
  // it may have failed because of it.
  static_cast<void>(commits_.Await());
  const bool committed = session.committed_step().has_value();
  // Numerics may put the commit in doubt from which the run resumed, even without a finished step.
  if (summary_.steps == 0 && !(committed && (begins_run_ || numeric))) return why;
  static_cast<void>(CloseRow(parts_.notes.Now()));  // the first failure is the one to report
  Error error = why;
  if (numeric) {
    parts_.observers.ReleaseCommit();
    const TakenBack commit = TakeBackDoubtfulCommit(session);
    if (commit.taken) doubted_.reset();  // it names no commit any more
    error.message += commit.text;
  }
  error.message += "; " + WhatIsCommitted(session, config.durable, why);
  if (numeric) error.message += HowToGoOn(failure, session, config);
  parts_.observers.AtEnd({.step = session.state().step,
                          .begun = begins_run_ && committed,
                          .failure = error,
                          .doubted_commit = doubted_});
  return error;
}

std::optional<double> TrainLoop::LastLoss() const {
  // A search recomputes the step, so the row is right and the model is not.
  if (row_) return row_->loss;
  if (!computed_) return {};
  const Result<double> loss = parts_.model.Loss();
  return loss.ok() ? std::optional(*loss) : std::nullopt;
}

}  // namespace penstock::train
