#include "train/loop/trainer_loop.h"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <utility>

#include "train/process/log.h"

namespace penstock::train {

namespace {

/// Of the rows of a step, at most so many are named.
constexpr uint64_t kNamedRows = 16;

/// What a rank tells the others, by its place in the note.
enum NoteField : size_t {
  kStop,     ///< it was asked to stop
  kCommit,   ///< it wants a commit
  kCopying,  ///< it copies the newest commit, so that no other may be made
  kReadBytes,
  kWriteBytes,
  kInitBytes,
  kCommitBytes,
  kVerifyBytes,
  kEvictions,
  kDevicePeak,
  kHostPeak,
  kCommWait,  ///< seconds since it began
};
static_assert(kCommWait < zero::kStepNoteSize);

bool IsDynamic(const std::optional<config::LossScaling>& scaling) {
  return scaling && scaling->loss_scale == 0;
}

/// Whether what happens every so many steps (0: never) is due after that of `row`.
bool IsDue(const StepRow& row, int64_t every) {
  if (every == 0) return false;
  const auto steps = static_cast<uint64_t>(every);
  return row.step / steps != row.previous_row.value_or(row.step - 1) / steps;
}

}  // namespace

TrainLoop::TrainLoop(LoopParts parts, LoopOptions options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      rampup_(RampupOf(options_.config)),
      consumed_samples_(options_.consumed_samples),
      search_(IsDynamic(options_.config.loss_scaling), options_.searches_every_skip),
      sound_(parts_.session.state().skipped_in_a_row == 0) {
  const BatchShape& shape = options_.shape;
  if (Trace* trace = parts_.meter.trace()) steps_ = trace->AddRow(TraceGroup::kSteps, "steps");
  inputs_.reserve(shape.micro_batches * shape.micro_batch * shape.sequence);
  targets_.reserve(inputs_.capacity());
}

TrainLoop::~TrainLoop() {
  if (committing_) static_cast<void>(parts_.session.FinishCommit());
}

Result<LoopSummary> TrainLoop::Run() {
  const Status status = RunSteps();
  if (status.ok()) return summary_;
  const bool numeric = status.error().code == ErrorCode::kNumeric;
  // A step that was not finished has no row.
  const uint64_t failed = row_.has_value() ? row_->step : parts_.session.state().step + 1;
  const std::optional<double> loss = numeric ? LastLoss() : std::nullopt;
  // A step that ended the run for its gradient was not finished, and its loss counts all the same.
  if (loss) NoteDoubt(*loss);
  const NumericEnd end = HowItEnds(loss);
  parts_.tell_failure(status.error());
  // What is committed is known when the commit that was begun has ended. A step that waited for it
  // may have failed because of it.
  static_cast<void>(AwaitCommit());
  const bool begun = begins_run_ && parts_.session.committed_step().has_value();
  // Numbers may speak against the commit from which the run resumed, though it did no step.
  const bool resumed = numeric && !begins_run_ && parts_.session.committed_step().has_value();
  if (summary_.steps == 0 && !begun && !resumed) return status.error();
  if (begun) parts_.keep_folder();
  static_cast<void>(CloseRow(Now()));  // the first failure is the one to report
  std::string message = status.error().message;
  if (numeric) message += TakeBackDoubtfulCommit();
  message += "; " + WhatIsCommitted(status.error());
  if (numeric) message += HowToGoOn(failed, end);
  if (numeric && parts_.watch != nullptr) {
    parts_.watch->End(parts_.session.state().step, message);
  }
  return Error{status.error().code, std::move(message)};
}

Status TrainLoop::RunSteps() {
  summary_.begin = Now();
  // Initialisation reads nothing: what was read ahead since then is the first step's.
  summary_.begin.counters.nvme_read_bytes = 0;
  row_begin_ = summary_.begin;
  last_commit_ = summary_.begin.time;
  PENSTOCK_TRY(BeginRun());
  const offload::CommitHead& state = parts_.session.state();
  while (state.step < options_.last_step && !StopRequested()) {
    PENSTOCK_TRY(EndRow());
    PENSTOCK_TRY(RunStep());
    parts_.keep_folder();
    PENSTOCK_TRY(parts_.session.CheckSkips());
    if (CommitDue()) PENSTOCK_TRY(BeginCommit());
    if (!options_.config.overlap) PENSTOCK_TRY(FinishCommit());
  }
  PENSTOCK_TRY(options_.commits_last ? CommitLast() : parts_.session.Drain());
  if (!alone()) {
    PENSTOCK_TRY(parts_.session.Drain());
    PENSTOCK_ASSIGN(std::vector<zero::StepNote> notes, parts_.exchange_notes(Note()));
    TakeNotes(std::move(notes));
  }
  summary_.end = Now();
  PENSTOCK_TRY(CloseRow(summary_.end));
  if (options_.commits_last) PENSTOCK_TRY(parts_.session.CheckCommit());
  summary_.last_step = state.step;
  summary_.committed_step = parts_.session.committed_step().value_or(0);
  summary_.interrupted = state.step < options_.last_step;
  return {};
}

Status TrainLoop::BeginRun() {
  // With one slot, the first update would give the commit up.
  const bool is_new = !parts_.session.committed_step() && options_.config.durable;
  if (!is_new || parts_.session.state().step >= options_.last_step) return {};
  begins_run_ = true;
  PENSTOCK_TRY(BeginCommit());
  return options_.config.overlap ? Status() : FinishCommit();
}

Status TrainLoop::PassOver() {
  for (const StepRange& range : options_.skips) {
    const uint64_t done = parts_.session.state().step;
    if (!range.Has(done + 1)) continue;
    PENSTOCK_TRY(parts_.session.PassOver(range.last));
    // Their rows count as taken.
    for (uint64_t step = done; step < range.last; ++step) {
      consumed_samples_ += rampup_.BatchAfter(consumed_samples_);
    }
    if (parts_.metrics == nullptr) continue;
    LogNotice(fmt::format("steps {} to {} are passed over", range.first, range.last));
  }
  return {};
}

Status TrainLoop::RunStep() {
  const uint64_t before = parts_.session.state().step;
  PENSTOCK_TRY(PassOver());
  const uint64_t number = parts_.session.state().step + 1;
  const uint64_t samples = rampup_.BatchAfter(consumed_samples_);
  const uint64_t micro_batches = samples / options_.shape.micro_batch / options_.world.size;
  Doing("reads the data of", number);
  PENSTOCK_TRY(ReadBatch(micro_batches));
  if (number == options_.last_step) parts_.session.ExpectLastStep();
  PENSTOCK_ASSIGN(zero::Step step, parts_.session.BeginStep(micro_batches));
  PENSTOCK_TRY(parts_.model.ForwardBackward(step, inputs_, targets_));
  computed_ = true;
  PENSTOCK_TRY(FinishCommit());
  KeepCommit();
  const double loss_scale = step.loss_scale();
  PENSTOCK_ASSIGN(zero::StepOutcome outcome, step.Finish(Note()));
  TakeNotes(std::move(outcome.notes));
  if (!alone() && options_.world.rank == 0) NameSlowRank();
  PENSTOCK_ASSIGN(const double loss, parts_.model.Loss());
  NoteDoubt(loss);

  StepRow row;
  row.step = outcome.step;
  row.loss = loss;
  row.grad_norm = outcome.grad_norm;
  row.lr = outcome.lr;
  row.loss_scale = outcome.loss_scale;
  row.skipped = outcome.skipped;
  row.tokens = inputs_.size() * options_.world.size;
  row.world_size = options_.world.size;
  if (before + 1 < row.step) row.previous_row = before;
  if (summary_.steps == 0) row.changed = options_.changed;
  if (options_.config.wall_clock_breakdown) SetPhases(outcome, &row);
  PENSTOCK_TRY(Watch(row, loss_scale));
  consumed_samples_ += samples;
  Count(row);
  row_ = row;
  return {};
}

void TrainLoop::SetPhases(const zero::StepOutcome& outcome, StepRow* row) const {
  row->forward_s = ToSeconds(outcome.loss_at - row_begin_.time);
  row->backward_s = ToSeconds(outcome.gradients_at - outcome.loss_at);
}

Status TrainLoop::ReadBatch(uint64_t micro_batches) {
  const BatchShape& shape = options_.shape;
  const size_t tokens = shape.micro_batch * shape.sequence;
  inputs_.resize(micro_batches * tokens);
  targets_.resize(inputs_.size());
  for (uint64_t j = 0; j < micro_batches; ++j) {
    PENSTOCK_TRY(parts_.data.Read(PositionOf(j, 0), shape.micro_batch,
                                  std::span(inputs_).subspan(j * tokens, tokens),
                                  std::span(targets_).subspan(j * tokens, tokens)));
  }
  return {};
}

uint64_t TrainLoop::PositionOf(uint64_t micro_batch, uint64_t i) const {
  const comm::World& world = options_.world;
  return consumed_samples_ + (micro_batch * world.size + world.rank) * options_.shape.micro_batch +
         i;
}

Status TrainLoop::Watch(const StepRow& row, double loss_scale) {
  PENSTOCK_TRY(Search(row));
  if (parts_.watch == nullptr) return {};
  StepNumbers numbers{.step = row.step,
                      .loss = row.loss,
                      .forward_finite = std::isfinite(row.loss),
                      .grad_norm = row.grad_norm,
                      .loss_scale = loss_scale,
                      .skipped = row.skipped,
                      .lr = row.lr,
                      .steps_to_stop = parts_.session.SkipsToTheEnd(),
                      .first = search_.first()};
  const uint64_t samples = row.tokens / options_.shape.sequence;
  for (uint64_t i = 0; i < std::min(samples, kNamedRows); ++i) {
    numbers.rows.push_back(parts_.data.RowAt(consumed_samples_ + i));
  }
  for (const LayerMagnitudes& layer : parts_.model.Magnitudes()) {
    numbers.layers.push_back({.attention = layer.attention, .residual = layer.residual});
  }
  parts_.watch->Step(std::move(numbers), parts_.session.figures());
  return {};
}

Status TrainLoop::Search(const StepRow& row) {
  const bool finite = std::isfinite(row.loss);
  const bool due = search_.Due({.step = row.step,
                                .forward_finite = finite,
                                .skipped_in_a_row = parts_.session.state().skipped_in_a_row,
                                .steps_to_stop = parts_.session.SkipsToTheEnd()});
  // Nothing is read ahead for a step after the last.
  if (parts_.search == nullptr || !due || row.step == options_.last_step) return {};
  Doing("computes again, to find what overflows,", row.step);
  PENSTOCK_ASSIGN(
      std::optional<FirstNonFinite> first,
      parts_.search->Run(inputs_, targets_, finite, [this](uint64_t micro_batch, uint64_t i) {
        return parts_.data.RowAt(PositionOf(micro_batch, i));
      }));
  search_.Found(std::move(first));
  return {};
}

void TrainLoop::Count(const StepRow& row) {
  sound_ = std::isfinite(row.loss) && !row.skipped;
  if (IsDue(row, options_.config.commit_every_steps)) commit_due_ = true;
  if (keep_ == Keep::kNothing && IsDue(row, options_.config.snapshot_every_steps)) {
    keep_ = Keep::kNextCommit;
  }
  summary_.steps += 1;
  summary_.skipped += row.skipped ? 1 : 0;
  summary_.tokens += row.tokens;
  if (!summary_.first_loss.has_value()) summary_.first_loss = row.loss;
  summary_.last_loss = row.loss;
}

Status TrainLoop::CloseRow(const Reading& now) {
  if (!row_.has_value()) return {};
  Measure(row_begin_, now, options_.cost, &*row_);
  if (parts_.watch != nullptr) parts_.watch->Took(row_->step_s);
  if (Trace* trace = parts_.meter.trace()) {
    trace->Add(steps_, fmt::format("step {}", row_->step), row_begin_.time, now.time);
  }
  // A row that is written is done with; the monitor can be given one again.
  if (parts_.monitor != nullptr) PENSTOCK_TRY(parts_.monitor->Append(*row_, consumed_samples_));
  if (parts_.metrics != nullptr) PENSTOCK_TRY(parts_.metrics->Append(*row_));
  if (parts_.progress != nullptr) parts_.progress->Report(*row_);
  row_.reset();
  row_begin_ = now;
  return {};
}

Status TrainLoop::EndRow() {
  Status written = CloseRow(Now());
  if (written.ok() || !alone()) return written;
  const Status committed = CommitLast();
  if (committed.ok()) return written;
  return Error{written.error().code,
               fmt::format("{}; {}", written.error().message, committed.error().message)};
}

bool TrainLoop::Copying() const {
  return parts_.snapshots != nullptr && parts_.snapshots->copying();
}

zero::StepNote TrainLoop::Note() const {
  if (alone()) return {};
  const zero::EngineCounters counters = parts_.session.counters();
  zero::StepNote note{};
  note[kStop] = parts_.stop_requested() ? 1 : 0;
  note[kCommit] = CommitWanted() ? 1 : 0;
  note[kCopying] = Copying() ? 1 : 0;
  note[kReadBytes] = static_cast<double>(counters.nvme_read_bytes);
  note[kWriteBytes] = static_cast<double>(counters.nvme_write_bytes);
  note[kInitBytes] = static_cast<double>(counters.nvme_init_bytes);
  note[kCommitBytes] = static_cast<double>(counters.nvme_commit_bytes);
  note[kVerifyBytes] = static_cast<double>(counters.nvme_verify_bytes);
  note[kEvictions] = static_cast<double>(counters.evictions);
  note[kDevicePeak] = static_cast<double>(DevicePeak().value);
  note[kHostPeak] = static_cast<double>(parts_.session.host_peak().value);
  note[kCommWait] = ToSeconds(parts_.meter.Totals().comm_wait);
  return note;
}

void TrainLoop::TakeNotes(std::vector<zero::StepNote> notes) {
  if (alone()) return;
  notes_ = std::move(notes);
  copying_ = false;
  for (const zero::StepNote& note : notes_) {
    stop_requested_ = stop_requested_ || note[kStop] != 0;
    copying_ = copying_ || note[kCopying] != 0;
  }
  commit_wanted_ = notes_.front()[kCommit] != 0;
}

void TrainLoop::NameSlowRank() {
  std::vector<double> waited;
  for (const zero::StepNote& note : notes_) waited.push_back(note[kCommWait]);
  const double now = ToSeconds(std::chrono::steady_clock::now().time_since_epoch());
  const std::optional<SlowRank::Finding> slow = slow_rank_.Step(waited, now);
  if (!slow) return;
  LogNotice(
      fmt::format("rank {} (host {}) is slow: for {:.0f} % of the last {} steps all others "
                  "waited for it; this is said once",
                  slow->rank, parts_.hosts[slow->rank], 100 * slow->share, SlowRank::kSteps));
}

void TrainLoop::Doing(const char* what, uint64_t step) const {
  if (parts_.doing) parts_.doing(fmt::format("{} step {}", what, step));
}

Reading TrainLoop::Now() const {
  Reading reading{.time = std::chrono::steady_clock::now(),
                  .activity = parts_.meter.Totals(),
                  .counters = parts_.session.counters(),
                  .device_peak = DevicePeak(),
                  .host_peak = parts_.session.host_peak()};
  for (size_t rank = 0; rank < notes_.size(); ++rank) {
    if (rank == options_.world.rank) continue;
    const auto told = [&](NoteField field) { return static_cast<uint64_t>(notes_[rank][field]); };
    reading.counters.nvme_read_bytes += told(kReadBytes);
    reading.counters.nvme_write_bytes += told(kWriteBytes);
    reading.counters.nvme_init_bytes += told(kInitBytes);
    reading.counters.nvme_commit_bytes += told(kCommitBytes);
    reading.counters.nvme_verify_bytes += told(kVerifyBytes);
    reading.counters.evictions += told(kEvictions);
    reading.device_peak = std::max(reading.device_peak, Bytes{told(kDevicePeak)});
    reading.host_peak = std::max(reading.host_peak, Bytes{told(kHostPeak)});
  }
  return reading;
}

}  // namespace penstock::train
