#include "train/trainer_loop.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

namespace penstock::train {

TrainLoop::TrainLoop(LoopParts parts, LoopOptions options)
    : parts_(std::move(parts)), options_(std::move(options)), state_(options_.start) {
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
  return Error{status.error().code,
               fmt::format("{}; {}", status.error().message, WhatIsCommitted())};
}

Status TrainLoop::RunSteps() {
  summary_.begin = Now();
  // Initialisation reads nothing: what was read ahead since then is the first step's.
  summary_.begin.counters.nvme_read_bytes = 0;
  row_begin_ = summary_.begin;
  last_commit_ = summary_.begin.time;
  while (state_.step < options_.last_step && !parts_.stop_requested()) {
    if (row_.has_value()) PENSTOCK_TRY(CloseRow(Now()));
    PENSTOCK_TRY(RunStep());
    parts_.keep_folder();
    if (state_.skipped_in_a_row >= kMaxSkippedInARow) {
      return MakeError(ErrorCode::kNumeric,
                       "step {}: {} steps in a row had gradients that are not finite and were "
                       "skipped; a lower learning rate may help",
                       state_.step, state_.skipped_in_a_row);
    }
    if (CommitDue()) BeginCommit();
    if (!options_.config.overlap) PENSTOCK_TRY(FinishCommit());
  }
  PENSTOCK_TRY(FinishCommit());
  if (committed_step_ != state_.step) BeginCommit();
  PENSTOCK_TRY(FinishCommit());
  summary_.end = Now();
  PENSTOCK_TRY(CloseRow(summary_.end));
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

bool TrainLoop::CommitDue() const {
  const zero::Config& config = options_.config;
  if (state_.step == options_.last_step) return false;  // the final commit is next
  if (parts_.snapshots != nullptr) {
    if (parts_.snapshots->copying()) return false;
    if (parts_.snapshots->Requested()) return true;
  }
  if (config.commit_every_steps > 0 &&
      state_.step % static_cast<uint64_t>(config.commit_every_steps) == 0) {
    return true;
  }
  const double since = ToSeconds(std::chrono::steady_clock::now() - last_commit_);
  return config.commit_every_seconds > 0 && since >= config.commit_every_seconds;
}

void TrainLoop::BeginCommit() {
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
  // Earlier rows reach the drive before the commit that counts on them.
  parts_.engine.BeginCommit(state, [&metrics = parts_.metrics] { return metrics.Sync(); });
  committing_step_ = state.step;
}

Status TrainLoop::FinishCommit() {
  if (!committing_step_.has_value()) return {};
  const uint64_t step = *std::exchange(committing_step_, std::nullopt);
  PENSTOCK_TRY(parts_.engine.FinishCommit());
  committed_step_ = step;
  last_commit_ = std::chrono::steady_clock::now();
  parts_.keep_folder();
  if (parts_.snapshots != nullptr) parts_.snapshots->CommitMade();
  return {};
}

std::string TrainLoop::WhatIsCommitted() const {
  if (!committed_step_.has_value()) return "nothing was committed yet";
  if (options_.config.durable) return fmt::format("step {} is committed", *committed_step_);
  return fmt::format(
      "step {} was committed, but without penstock.durable later steps take a commit "
      "back",
      *committed_step_);
}

Snapshot TrainLoop::Now() const {
  return {.time = std::chrono::steady_clock::now(),
          .activity = parts_.meter.Totals(),
          .counters = parts_.engine.counters(),
          .device_peak = parts_.device.peak(),
          .host_peak = parts_.engine.host_peak()};
}

}  // namespace penstock::train
