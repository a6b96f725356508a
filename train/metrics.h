// One row of RUN/metrics.jsonl a step, and the sums of RUN/summary.json. docs/metrics.md says what
// each field means and when it is taken.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/activity.h"
#include "base/folder.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "zero/engine.h"

namespace penstock::train {

inline double ToSeconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// What a step needs to state its speed.
struct ModelCost {
  uint64_t parameters = 0;
  uint64_t layers = 0;
  uint64_t width = 0;
  uint64_t sequence = 0;

  /// Forward and backward, recomputation not counted: tokens * (6 N + 12 layers * width * T).
  double FlopsPerStep(uint64_t tokens) const;
};

/// Everything that is measured, at one moment.
struct Snapshot {
  std::chrono::steady_clock::time_point time;
  ActivityTotals activity;
  zero::EngineCounters counters;
  Bytes device_peak;
  Bytes host_peak;
};

/// Field names are those of the file.
struct StepRow {
  uint64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double loss_scale = 1;
  bool skipped = false;
  uint64_t tokens = 0;
  double step_s = 0;
  double tokens_per_s = 0;
  double tflops = 0;
  double compute_s = 0;
  double io_wait_s = 0;
  double optimizer_s = 0;
  uint64_t device_peak_bytes = 0;
  uint64_t host_peak_bytes = 0;
  uint64_t nvme_read_bytes = 0;
  uint64_t nvme_write_bytes = 0;
};

/// Sets all that is measured in `row` (from step_s on) from the step's first and last moment. Reads
/// row->tokens. Peaks are those so far, everything else what happened in between.
void Measure(const Snapshot& begin, const Snapshot& end, const ModelCost& cost, StepRow* row);

/// A loss as it is shown: four places; "nan" whatever sign a NaN has.
std::string LossText(double loss);

/// One line without its line break: floats have the digits to read them back exactly, non-finite
/// ones are null.
std::string ToJson(const StepRow& row);

/// Appends rows to a file in a folder (Folder::OpenFile). Each row is handed to the kernel whole
/// before Append returns, and is on the drive after Sync.
class MetricsWriter {
 public:
  /// Makes the file and its name durable. Errors: of open, where the path exists, too.
  static Result<MetricsWriter> Create(const Folder& folder, const std::string& name);
  /// Cuts a file back to the rows up to `step`, of which it adds the last one, `row`, where it is
  /// missing (the row of a committed step may not have reached the file). Makes a file that is
  /// missing, and says so, and which rows are missing where the file ends early. Durable when it
  /// returns. Errors: those of Check, and the file is as it was.
  static Result<MetricsWriter> Resume(const Folder& folder, const std::string& name, uint64_t step,
                                      const std::string& row);
  /// Whether Resume can go on with a file for `step`, which is committed: it is not damaged, or
  /// missing. Errors: of RowsUpTo (train/metrics_rows.h).
  static Status Check(const Folder& folder, const std::string& name, uint64_t step);
  Status Append(const StepRow& row);
  Status Sync();

 private:
  Status AppendLine(const std::string& json);
  void TakeBack(size_t bytes);

  MetricsWriter(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace penstock::train
