// What a run says of the steps of a training whose caller computes: rows, findings about their
// numbers, which commit is in doubt, and curves (docs/pytorch_runs.md, "Rows").
//
// Files, detectors and their order are those of `penstock train` (run/rows, run/observers). Rows,
// findings and doubts are written if the steps report their loss; curves if the configuration has
// csv_monitor. Without both, a step costs nothing here. A row is written when its step ends.
//
// No file ends a training: what cannot be written is a notice. Threads: one at a time; Sync also
// from the one that makes a commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "config/config.h"
#include "run/observers/doubt_notes.h"
#include "run/observers/run_watch.h"
#include "run/rows/csv_monitor.h"
#include "run/rows/metrics_file.h"
#include "zero/engine/state_port.h"
#include "zero/session/session.h"
#include "zero/states/tensor_figures.h"

namespace penstock::front {

/// The losses of a step.
struct StepLosses {
  std::optional<double> reported;
  std::optional<double> noted;  ///< for curves alone
};

/// What the caller of a step says of it.
struct StepSayings {
  double lr = 0;          ///< of its first group
  double loss_scale = 1;  ///< of its gradient
};

class StepLog {
 public:
  /// Where a training begins.
  struct Beginning {
    bool resumes = false;  ///< from a commit
    uint64_t step = 0;     ///< of that
    std::string row;       ///< of that; empty: it has none
    /// That the steps up to it took; none: each took as many as the next ones take.
    std::optional<uint64_t> samples;
    std::optional<std::string> rows_from;  ///< see RunInfo
  };

  using Makes = std::function<Status(const std::vector<std::string>& files)>;

  /// Opens the log of a training, in the run's folder, which outlives it. Cuts the files back to
  /// the commit, and opens those of csv_monitor. A new run says by `makes` which files it is
  /// about to make. Errors: of CsvMonitor; of `makes`.
  static Result<std::unique_ptr<StepLog>> Open(const Folder& run, const zero::Session& session,
                                               const config::Config& config, bool scales_loss,
                                               Beginning beginning, Makes makes);

  /// Takes the loss that a step reported which has ended, was dropped or has failed; before
  /// AfterStep, as a killed process can note nothing.
  void AfterLoss(const zero::Session& session, const std::optional<double>& loss);
  /// Takes that the newest commit was taken back.
  void AfterTakeBack(const zero::Session& session) { NoteDoubt(session); }
  /// Takes the step that has just ended. `figures`: of all tensors; empty if they are not known.
  void AfterStep(const zero::Session& session, const zero::StepOutcome& outcome,
                 const zero::StepFigures& figures, const StepLosses& losses,
                 const StepSayings& said);
  /// Whether rows cannot be written; then the run's file may have those of other steps.
  bool rows_are_off() const { return off_; }
  /// The row of the last step, for a commit of that; empty if there is none. A step has it also if
  /// the file cannot have it, and names the steps before it whose rows that lacks.
  std::string RowOf(uint64_t step) const;
  /// The samples that the steps up to this one took.
  uint64_t SamplesAt(uint64_t step) const;
  /// Makes durable what was written, on the thread that makes a commit.
  void Sync();
  /// Takes whether the commit that Sync was for was made.
  void AfterCommit(const zero::Session& session, const Status& made);
  /// Takes why no further step can follow.
  void Failed(uint64_t step, const Error& why);

  /// Lines for the user: findings, and what could not be done.
  void Say(const std::string& line);
  size_t notices() const { return notices_.size(); }
  std::vector<std::string> TakeNotices();

 private:
  /// Notices that are kept for a caller that takes none.
  static constexpr size_t kMaxNotices = 1000;

  struct Moment {
    std::chrono::steady_clock::time_point at;
    uint64_t read_bytes = 0;
    uint64_t write_bytes = 0;
  };

  StepLog(const Folder& run, const config::Config& config, bool scales_loss, Beginning beginning,
          Makes makes, const std::string& state_uuid)
      : run_(run),
        batch_(config.train_batch_size),
        scales_loss_(scales_loss),
        beginning_(std::move(beginning)),
        makes_(std::move(makes)),
        doubt_(run, state_uuid, [this](const std::string& line) { Say(line); }) {}
  Status OpenCurves(config::Config config);
  void NoteDoubt(const zero::Session& session);
  bool MayHaveRows() const;
  void BeginRows(double loss_scale);
  /// Turns rows off, and says why, unless they can be written.
  void KeepRows(const Status& can_be_written);
  Result<bool> CheckRows() const;
  Status TakeRows();
  Status TryBeginRows();
  void KeepPlaceOfRows(uint64_t step);
  zero::StepFigures Watched(const zero::StepFigures& all) const;
  void Watch(const zero::Session& session, const zero::StepFigures& figures,
             const train::StepRow& row, double loss_scale);
  /// Says why something could not be written, unless it was said of the step before.
  void SayOnce(const Status& written, bool* fails);
  static Moment Now(const zero::Session& session);

  const Folder& run_;
  const uint64_t batch_;    ///< samples of a step
  const bool scales_loss_;  ///< the engine keeps the loss scale
  const Beginning beginning_;
  const Makes makes_;
  train::WatchedRun watched_;    ///< until watch_ is made
  std::vector<size_t> trained_;  ///< the tensors that are watched
  size_t tensors_ = 0;           ///< of the model
  std::optional<train::CsvMonitor> curves_;
  std::optional<train::MetricsWriter> rows_;
  std::unique_ptr<train::RunWatch> watch_;
  train::DoubtNotes doubt_;
  bool last_loss_is_finite_ = true;
  bool had_rows_ = false;  ///< of earlier steps; then the files of findings are the run's
  bool off_ = false;       ///< rows cannot be written
  bool rows_fail_ = false;
  bool curves_fail_ = false;
  bool rows_sync_fails_ = false;
  bool curves_sync_fails_ = false;
  bool failed_ = false;
  Moment begin_;  ///< of the step under way
  std::optional<train::StepRow> row_;
  Status rows_synced_;
  Status curves_synced_;
  std::deque<std::string> notices_;
};

}  // namespace penstock::front
