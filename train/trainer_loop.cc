#include "train/trainer_loop.h"

#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

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

std::string CommittedIn(uint64_t step, const zero::Engine& engine, const Error& failure) {
  const Status commit = engine.CheckCommit();
  const std::string files = fmt::format("{}", fmt::join(engine.state_paths(), ", "));
  if (commit.ok()) return fmt::format("step {} is committed in {}", step, files);
  const std::string& why = commit.error().message;
  return fmt::format("step {} was committed in {}, {}{}", step, files,
                     IsLost(commit) ? "and that commit is lost" : "but it cannot be read back now",
                     failure.message.find(why) == std::string::npos ? ": " + why : "");
}

Bytes TrainLoop::TokenBytes(const Gpt2Shape& shape) {
  // Inputs and targets of the step; a row of them and one token more as they are read.
  const Bytes row = Bytes{sizeof(int32_t)} * (shape.sequence + 1);
  return Bytes{sizeof(int32_t)} * 2 * shape.sequence * shape.micro_batch * shape.micro_batches +
         row;
}

TrainLoop::TrainLoop(LoopParts parts, LoopOptions options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      state_(options_.start),
      sound_(state_.skipped_in_a_row == 0) {
  if (options_.resumed) committed_step_ = state_.step;
  const Gpt2Shape& shape = options_.shape;
  if (Trace* trace = parts_.meter.trace()) steps_ = trace->AddRow(TraceGroup::kSteps, "steps");
  inputs_.resize(shape.micro_batches * shape.micro_batch * shape.sequence);
  targets_.resize(inputs_.size());
}

TrainLoop::~TrainLoop() {
  if (committing_step_.has_value()) static_cast<void>(parts_.engine.FinishCommit());
}

Result<LoopSummary> TrainLoop::Run() {
  const Status status = RunSteps();
  if (status.ok()) return summary_;
  // What is committed is known when the commit that was begun has ended.
  if (committing_step_.has_value() && parts_.engine.FinishCommit().ok()) {
    committed_step_ = committing_step_;
  }
  if (summary_.steps == 0) return status.error();
  static_cast<void>(CloseRow(Now()));  // the first failure is the one to report
  std::string message =
      fmt::format("{}; {}", status.error().message, WhatIsCommitted(status.error()));
  if (status.error().code == ErrorCode::kNumeric) message += HowToGoOn();
  return Error{status.error().code, std::move(message)};
}

Status TrainLoop::RunSteps() {
  summary_.begin = Now();
  // Initialisation reads nothing: what was read ahead since then is the first step's.
  summary_.begin.counters.nvme_read_bytes = 0;
  row_begin_ = summary_.begin;
  last_commit_ = summary_.begin.time;
  while (state_.step < options_.last_step && !parts_.stop_requested()) {
    PENSTOCK_TRY(EndRow());
    PENSTOCK_TRY(RunStep());
    parts_.keep_folder();
    if (state_.skipped_in_a_row >= kMaxSkippedInARow) {
      return MakeError(ErrorCode::kNumeric,
                       "step {}: {} steps in a row had gradients that are not finite and were "
                       "skipped",
                       state_.step, state_.skipped_in_a_row);
    }
    if (CommitDue()) BeginCommit();
    if (!options_.config.overlap) PENSTOCK_TRY(FinishCommit());
  }
  PENSTOCK_TRY(CommitLast());
  summary_.end = Now();
  PENSTOCK_TRY(CloseRow(summary_.end));
  PENSTOCK_TRY(parts_.engine.CheckCommit());
  summary_.last_step = state_.step;
  summary_.committed_step = *committed_step_;
  summary_.interrupted = state_.step < options_.last_step;
  return {};
}

Status TrainLoop::RunStep() {
  const uint64_t step = state_.step + 1;
  const zero::Config& config = options_.config;
  PENSTOCK_TRY(ReadBatch(step));
  const uint64_t t = state_.optimizer_steps + 1;
  const double lr = zero::LearningRate(config.scheduler, config.optimizer.lr, t);
  if (step == options_.last_step) parts_.engine.ExpectLastStep();
  PENSTOCK_TRY(parts_.engine.BeginStep(lr, t));
  PENSTOCK_TRY(parts_.model.ForwardBackward(parts_.engine, inputs_, targets_));
  PENSTOCK_TRY(FinishCommit());
  PENSTOCK_ASSIGN(const zero::StepOutcome outcome, parts_.engine.EndStep());
  PENSTOCK_ASSIGN(const double loss, parts_.model.Loss());

  StepRow row;
  row.step = step;
  row.loss = loss;
  row.grad_norm = outcome.grad_norm;
  row.lr = lr;
  row.skipped = outcome.skipped;
  row.tokens = inputs_.size();
  Count(row);
  row_ = row;
  return {};
}

Status TrainLoop::ReadBatch(uint64_t step) {
  const Gpt2Shape& shape = options_.shape;
  const size_t tokens = shape.micro_batch * shape.sequence;
  for (uint64_t j = 0; j < shape.micro_batches; ++j) {
    const uint64_t index = (step - 1) * shape.micro_batches + j;
    PENSTOCK_TRY(parts_.data.Read(index, shape.micro_batch,
                                  std::span(inputs_).subspan(j * tokens, tokens),
                                  std::span(targets_).subspan(j * tokens, tokens)));
  }
  return {};
}

void TrainLoop::Count(const StepRow& row) {
  sound_before_ = std::exchange(sound_, std::isfinite(row.loss) && !row.skipped);
  const auto every = static_cast<uint64_t>(options_.config.commit_every_steps);
  if (every > 0 && row.step % every == 0) commit_due_ = true;
  state_.step = row.step;
  state_.optimizer_steps += row.skipped ? 0 : 1;
  state_.skipped_in_a_row = row.skipped ? state_.skipped_in_a_row + 1 : 0;
  summary_.steps += 1;
  summary_.skipped += row.skipped ? 1 : 0;
  summary_.tokens += row.tokens;
  if (!summary_.first_loss.has_value()) summary_.first_loss = row.loss;
  summary_.last_loss = row.loss;
}

Status TrainLoop::CloseRow(const Snapshot& now) {
  if (!row_.has_value()) return {};
  Measure(row_begin_, now, options_.cost, &*row_);
  if (Trace* trace = parts_.meter.trace()) {
    trace->Add(steps_, fmt::format("step {}", row_->step), row_begin_.time, now.time);
  }
  PENSTOCK_TRY(parts_.metrics.Append(*row_));
  parts_.progress.Report(*row_);
  row_.reset();
  row_begin_ = now;
  return {};
}

Status TrainLoop::EndRow() {
  Status written = CloseRow(Now());
  if (written.ok()) return {};
  const Status committed = CommitLast();
  if (committed.ok()) return written;
  return Error{written.error().code,
               fmt::format("{}; {}", written.error().message, committed.error().message)};
}

bool TrainLoop::CommitDue() const {
  const zero::Config& config = options_.config;
  if (!sound_ || state_.step == options_.last_step) return false;  // the final commit is next
  if (parts_.snapshots != nullptr) {
    if (parts_.snapshots->copying()) return false;
    if (parts_.snapshots->Requested()) return true;
  }
  if (commit_due_) return true;
  const double since = ToSeconds(std::chrono::steady_clock::now() - last_commit_);
  return config.commit_every_seconds > 0 && since >= config.commit_every_seconds;
}

void TrainLoop::BeginCommit() {
  commit_due_ = false;
  zero::TrainState state = state_;
  nlohmann::ordered_json json = {{"run", nlohmann::ordered_json::parse(options_.start.run_json)}};
  if (row_.has_value()) {
    // The row reaches metrics.jsonl only when the next step starts: without this copy a crash in
    // between would leave a committed step without its row.
    StepRow row = *row_;
    Measure(row_begin_, Now(), options_.cost, &row);
    json["row"] = nlohmann::ordered_json::parse(ToJson(row));
  }
  state.run_json = json.dump();
  if (parts_.snapshots != nullptr) parts_.snapshots->Wait();
  // Earlier rows reach the drive before the commit that counts on them. Where they cannot, the
  // commit is made all the same: its own row is in it.
  parts_.engine.BeginCommit(state, [this] {
    rows_synced_ = parts_.metrics.Sync();
    return Status();
  });
  committing_step_ = state.step;
}

Status TrainLoop::FinishCommit() {
  if (!committing_step_.has_value()) return {};
  const uint64_t step = *std::exchange(committing_step_, std::nullopt);
  PENSTOCK_TRY(parts_.engine.FinishCommit());
  committed_step_ = step;
  PENSTOCK_TRY(parts_.check_folder());
  last_commit_ = std::chrono::steady_clock::now();
  parts_.keep_folder();
  if (parts_.snapshots != nullptr) parts_.snapshots->CommitMade();
  return rows_synced_;
}

Status TrainLoop::CommitLast() {
  PENSTOCK_TRY(FinishCommit());
  if (committed_step_ == state_.step) return {};
  // A step that was skipped changed nothing: its loss alone does not speak against weights that the
  // step before found sound.
  const bool unchanged = row_.has_value() && row_->skipped && sound_before_;
  if (row_.has_value() && !std::isfinite(row_->loss) && !unchanged) {
    return MakeError(ErrorCode::kNumeric,
                     "step {}: the loss is not finite, and what the weights are now is not "
                     "committed",
                     state_.step);
  }
  BeginCommit();
  return FinishCommit();
}

std::string TrainLoop::WhatIsCommitted(const Error& failure) const {
  if (!committed_step_.has_value()) return "nothing was committed yet";
  if (options_.config.durable || parts_.engine.CheckCommit().ok()) {
    return CommittedIn(*committed_step_, parts_.engine, failure);
  }
  return fmt::format(
      "step {} was committed, but without penstock.durable later steps take a commit "
      "back",
      *committed_step_);
}

std::string TrainLoop::HowToGoOn() const {
  if (!committed_step_.has_value()) return "; a lower learning rate may help";
  const Status commit = parts_.engine.CheckCommit();
  if (IsLost(commit)) return "; begin a new run: a lower learning rate may help";
  if (!commit.ok()) return "";
  return "; --resume repeats the steps after it as they were; for a lower learning rate begin a "
         "new run with what penstock export writes of it";
}

Snapshot TrainLoop::Now() const {
  return {.time = std::chrono::steady_clock::now(),
          .activity = parts_.meter.Totals(),
          .counters = parts_.engine.counters(),
          .device_peak = parts_.device.peak(),
          .host_peak = parts_.engine.host_peak()};
}

}  // namespace penstock::train
