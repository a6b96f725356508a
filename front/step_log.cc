#include "front/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "run/commit_rows.h"
#include "run/made_files.h"
#include "run/observers/watched_run.h"
#include "run/row_reader.h"
#include "run/rows/numerics_files.h"
#include "run/run_folder.h"

namespace penstock::front {
namespace {

using train::StepRow;

/// The dtype of trained weights in which values end first.
DType DTypeOf(const offload::ModelLayout& model) {
  const auto has = [&model](Encoding encoding) {
    return std::ranges::any_of(model.groups, [encoding](const offload::GroupLayout& group) {
      return !group.frozen && group.planes.weight().encoding == encoding;
    });
  };
  return has(Encoding::kFloat16)    ? DType::kFloat16
         : has(Encoding::kBFloat16) ? DType::kBFloat16
                                    : DType::kFloat32;
}

/// Keeps the elements with these indices.
template <typename T>
void KeepOnly(const std::vector<size_t>& indices, std::vector<T>* all) {
  if (all->empty()) return;
  std::vector<T> kept;
  for (const size_t i : indices) kept.push_back(std::move((*all)[i]));
  *all = std::move(kept);
}

/// The indices of the tensors that are trained, in the order of StepFigures.
std::vector<size_t> Trained(const offload::ModelLayout& model) {
  std::vector<size_t> trained;
  size_t i = 0;
  for (const offload::ModuleLayout& module : model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      if (!model.group(tensor.group).frozen) trained.push_back(i);
      ++i;
    }
  }
  return trained;
}

bool HasFileOfRows(const Folder& folder) {
  const Result<bool> rows = train::HasRows(folder);
  return rows.ok() && *rows;
}

/// 1 if there is no row.
double LossScaleIn(const std::string& row) {
  const nlohmann::json json = nlohmann::json::parse(row, nullptr, /*allow_exceptions=*/false);
  const auto scale = json.is_object() ? json.find("loss_scale") : json.end();
  return scale != json.end() && scale->is_number() ? scale->get<double>() : 1;
}

/// Activations are the caller's, and so are schedule and vocabulary.
train::WatchedRun WatchedOf(const config::Config& config, const zero::Session& session,
                            bool scales_loss) {
  const offload::ModelLayout& model = session.layout().model;
  train::WatchedRun watched = train::WatchedRunOf(config, session.model(), model);
  watched.facts.dtype = DTypeOf(model);
  watched.facts.rate_key = "lr";
  if (!scales_loss) watched.facts.dynamic_loss_scale = false;
  watched.facts.layers.clear();
  return watched;
}

}  // namespace

Result<std::unique_ptr<StepLog>> StepLog::Open(const Folder& run, const zero::Session& session,
                                               const config::Config& config, bool scales_loss,
                                               Beginning beginning, Makes makes) {
  std::unique_ptr<StepLog> log(new StepLog(run, config, scales_loss, std::move(beginning),
                                           std::move(makes), session.state_uuid()));
  log->watched_ = WatchedOf(config, session, scales_loss);
  log->tensors_ = log->watched_.elements.size();
  log->trained_ = Trained(session.layout().model);
  KeepOnly(log->trained_, &log->watched_.facts.tensors);
  KeepOnly(log->trained_, &log->watched_.elements);
  log->had_rows_ = log->MayHaveRows();
  if (log->beginning_.rows_from) log->KeepRows(log->TakeRows());
  if (log->MayHaveRows()) log->BeginRows(LossScaleIn(log->beginning_.row));
  PENSTOCK_TRY(log->OpenCurves(config));
  log->begin_ = Now(session);
  return log;
}

/// Of the times of a step that a caller computes only the whole is known. Behind the commit of a
/// snapshot the lines are those of its rows, as the files may have those of steps that were given
/// up.
Status StepLog::OpenCurves(config::Config config) {
  if (!config.csv_monitor) return {};
  config.wall_clock_breakdown = false;
  if (!beginning_.resumes) {
    PENSTOCK_TRY(train::CsvMonitor::CheckFree(config));
    PENSTOCK_ASSIGN(const std::vector<std::string> paths, train::CsvMonitor::PathsOf(config));
    PENSTOCK_TRY(makes_(paths));
    PENSTOCK_ASSIGN(curves_, train::CsvMonitor::Create(config));
    return {};
  }
  std::vector<std::string> rows;
  if (beginning_.rows_from && rows_) {
    PENSTOCK_TRY(train::ForEachRow(
        run_, [&rows](uint64_t, const nlohmann::json& row) { rows.push_back(row.dump()); }));
    if (rows.size() != beginning_.step) rows.clear();  // steps without a row have lines, too
  }
  PENSTOCK_ASSIGN(
      curves_,
      train::CsvMonitor::Resume(
          config, {.samples = SamplesAt(beginning_.step), .row = beginning_.row, .rows = rows},
          [this](const std::string& line) { Say(line); }));
  return {};
}

/// Whether there are rows of earlier steps.
bool StepLog::MayHaveRows() const {
  return beginning_.resumes && (!beginning_.row.empty() || HasFileOfRows(run_));
}

Status StepLog::TakeRows() {
  PENSTOCK_TRY(CheckRows().status());
  return train::TakeRows(run_, *beginning_.rows_from, beginning_.step,
                         [this](const std::string& line) { Say(line); });
}

/// A caller that scales its loss is taken to change the scale as steps overflow, as GradScaler
/// does.
void StepLog::BeginRows(double loss_scale) {
  if (rows_ || off_) return;
  if (!scales_loss_ && loss_scale != 1) watched_.facts.dynamic_loss_scale = true;
  KeepRows(TryBeginRows());
}

void StepLog::KeepRows(const Status& can_be_written) {
  if (can_be_written.ok()) return;
  off_ = true;
  Say(fmt::format("{}; rows of steps and findings about their numbers are not written",
                  can_be_written.error().message));
}

/// Returns whether there is a file of rows. Errors: kInvalidArgument if it is none of rows.
Result<bool> StepLog::CheckRows() const {
  PENSTOCK_ASSIGN(const bool there, train::HasRows(run_));
  if (!there) return false;
  PENSTOCK_ASSIGN(const bool rows, train::MetricsWriter::HoldsRows(run_, train::kMetricsName));
  if (rows) return true;
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} does not begin with a row of a run; move it away",
                   run_.PathOf(train::kMetricsName));
}

Status StepLog::TryBeginRows() {
  PENSTOCK_ASSIGN(const bool there, CheckRows());
  if (there && !beginning_.resumes) {
    return MakeError(ErrorCode::kInvalidArgument, "{} was there before this run; move it away",
                     run_.PathOf(train::kMetricsName));
  }
  if (!had_rows_) PENSTOCK_TRY(train::NumericsWriter::Create(run_).status());
  if (!beginning_.resumes) PENSTOCK_TRY(makes_(train::NamesOfRows()));
  const Notify say = [this](const std::string& line) { Say(line); };
  const uint64_t step = beginning_.step;
  Result<train::MetricsWriter> rows =
      there || !beginning_.row.empty()
          ? train::MetricsWriter::Resume(run_, train::kMetricsName, step, beginning_.row, say)
          : train::MetricsWriter::Create(run_, train::kMetricsName);
  PENSTOCK_TRY(rows.status());
  PENSTOCK_ASSIGN(watch_, train::RunWatch::Begin(
                              run_, watched_, had_rows_ ? std::optional(step) : std::nullopt, say));
  rows_ = *std::move(rows);
  return {};
}

StepLog::Moment StepLog::Now(const zero::Session& session) {
  const zero::EngineCounters counters = session.counters();
  return {.at = std::chrono::steady_clock::now(),
          .read_bytes = counters.nvme_read_bytes,
          .write_bytes = counters.nvme_write_bytes};
}

zero::StepFigures StepLog::Watched(const zero::StepFigures& all) const {
  zero::StepFigures figures = all;
  if (trained_.size() == tensors_) return figures;
  KeepOnly(trained_, &figures.gradients);
  KeepOnly(trained_, &figures.updates);
  KeepOnly(trained_, &figures.zeros);
  return figures;
}

void StepLog::AfterLoss(const zero::Session& session, const std::optional<double>& loss) {
  if (!loss) return;
  last_loss_is_finite_ = std::isfinite(*loss);
  NoteDoubt(session);
}

void StepLog::NoteDoubt(const zero::Session& session) {
  doubt_.Note(session.life().Doubted(last_loss_is_finite_));
}

void StepLog::AfterStep(const zero::Session& session, const zero::StepOutcome& outcome,
                        const zero::StepFigures& figures, const StepLosses& losses,
                        const StepSayings& said) {
  row_.reset();
  if (losses.reported) BeginRows(said.loss_scale);
  const bool has_row = losses.reported.has_value();
  if (!has_row && !curves_) return;
  const std::optional<double> loss = losses.reported ? losses.reported : losses.noted;
  const Moment now = Now(session);
  StepRow row;
  row.step = outcome.step;
  row.loss = loss.value_or(0);
  row.has_loss = loss.has_value();
  row.grad_norm = outcome.grad_norm;
  row.lr = said.lr;
  row.loss_scale = scales_loss_ ? outcome.loss_scale : said.loss_scale;
  row.skipped = outcome.skipped;
  row.samples = SamplesAt(outcome.step);
  row.step_s = std::chrono::duration<double>(now.at - begin_.at).count();
  row.host_peak_bytes = session.host_peak().value;
  row.nvme_read_bytes = now.read_bytes - begin_.read_bytes;
  row.nvme_write_bytes = now.write_bytes - begin_.write_bytes;
  if (has_row && watch_ != nullptr) Watch(session, Watched(figures), row, said.loss_scale);
  if (curves_) SayOnce(curves_->Append(row, *row.samples), &curves_fail_);
  if (has_row) {
    if (rows_) SayOnce(rows_->Append(row), &rows_fail_);
    if (!rows_) row.previous_row = beginning_.step;
    row_ = std::move(row);
  }
  begin_ = now;
}

void StepLog::Watch(const zero::Session& session, const zero::StepFigures& figures,
                    const StepRow& row, double loss_scale) {
  train::DoneStep done{.numbers = {.step = row.step,
                                   .loss = row.loss,
                                   .forward_finite = std::isfinite(row.loss),
                                   .grad_norm = row.grad_norm,
                                   .loss_scale = loss_scale,
                                   .skipped = row.skipped,
                                   .lr = row.lr,
                                   .steps_to_stop = session.SkipsToTheEnd()},
                       .skipped_in_a_row = session.state().skipped_in_a_row,
                       .figures = figures};
  // Both only report, and what they cannot write they say themselves.
  static_cast<void>(watch_->AfterStep(done));
  static_cast<void>(watch_->AfterRow({.row = row, .samples = *row.samples}));
}

std::string StepLog::RowOf(uint64_t step) const {
  if (step == beginning_.step) return beginning_.row;
  return row_ && row_->step == step ? train::ToJson(*row_) : std::string();
}

uint64_t StepLog::SamplesAt(uint64_t step) const {
  const uint64_t before = beginning_.samples.value_or(beginning_.step * batch_);
  return before + (step - beginning_.step) * batch_;
}

void StepLog::Sync() {
  rows_synced_ = rows_ ? rows_->Sync() : Status();
  curves_synced_ = curves_ ? curves_->Sync() : Status();
}

/// Somebody may have removed the file of rows, or put another in its place.
void StepLog::KeepPlaceOfRows(uint64_t step) {
  if (!rows_ || rows_->IsAt(run_, train::kMetricsName)) return;
  Say(fmt::format("{} was removed or replaced while its run is training",
                  run_.PathOf(train::kMetricsName)));
  Result<train::MetricsWriter> rows = train::MetricsWriter::Resume(
      run_, train::kMetricsName, step, RowOf(step), [this](const std::string& line) { Say(line); });
  const Status begun = rows.status();
  rows_.reset();
  if (begun.ok()) rows_ = *std::move(rows);
  KeepRows(begun);
}

void StepLog::AfterCommit(const zero::Session& session, const Status& made) {
  const uint64_t step = session.state().step;
  if (made.ok()) {
    NoteDoubt(session);  // a step that was dropped meanwhile may have reported its loss
    SayOnce(rows_synced_, &rows_sync_fails_);
    SayOnce(curves_synced_, &curves_sync_fails_);
    KeepPlaceOfRows(row_ ? row_->step : step);
    return;
  }
  if (made.error().code != ErrorCode::kNumeric) return;
  if (watch_ != nullptr) watch_->CommitRefused(step, made.error().message);
  Failed(step, made.error());
}

void StepLog::Failed(uint64_t step, const Error& why) {
  if (watch_ == nullptr || std::exchange(failed_, true)) return;
  watch_->AtEnd({.step = step, .failure = why});
}

void StepLog::SayOnce(const Status& written, bool* fails) {
  const bool failed = std::exchange(*fails, !written.ok());
  if (!written.ok() && !failed) Say(written.error().message);
}

void StepLog::Say(const std::string& line) {
  notices_.push_back(line);
  if (notices_.size() > kMaxNotices) notices_.pop_front();
}

std::vector<std::string> StepLog::TakeNotices() {
  std::vector<std::string> taken(notices_.begin(), notices_.end());
  notices_.clear();
  return taken;
}

}  // namespace penstock::front
