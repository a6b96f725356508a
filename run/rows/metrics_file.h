// RUN/metrics.jsonl: one row a step. docs/metrics.md says what each field means and when it is
// taken.
//
// Threads: as of a LineFile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "run/rows/line_file.h"

namespace penstock::train {

/// Field names are those of the file.
struct StepRow {
  uint64_t step = 0;
  double loss = 0;
  bool has_loss = true;  ///< false: it is not known. Such a row has points of curves alone
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
  double hardware_tflops = 0;
  // Only in the file with wall_clock_breakdown.
  std::optional<double> forward_s;
  std::optional<double> backward_s;
  // Only in the file if there are several ranks.
  double comm_wait_s = 0;
  uint32_t world_size = 1;
  // Only in the file if the caller computes (front/step_log.h): then tokens, times and memory of
  // the device and times of I/O and updates are not known, and have no fields.
  std::optional<uint64_t> samples;  ///< rows of the data that all steps up to this one took
  // Only in the file if there are any.
  std::vector<std::string> changed = {};  ///< keys of the configuration, from this step on
  std::optional<uint64_t> previous_row;   ///< the step of the row before, if steps lie between
};

/// Returns one line without its line break. Floats have enough digits to be read back exactly;
/// non-finite ones are null.
std::string ToJson(const StepRow& row);

/// Appends rows to a file in a folder (Folder::OpenFile). Each row is handed to the kernel whole
/// before Append returns, and is on the drive after Sync.
class MetricsWriter {
 public:
  /// Creates the file, and makes it and its name durable. Errors: of open, also if the path exists.
  static Result<MetricsWriter> Create(const Folder& folder, const std::string& name);
  /// Cuts a file back to the rows up to `step`. Adds the last of them, `row`, if it is missing (the
  /// row of a committed step may not have reached the file), unless `row` is empty. Rows between
  /// that one and the one that it names as the row before it are of steps that were given up. So
  /// are all rows of a file whose row of `step` is another: it is put aside (PutAside). Creates a
  /// missing file and says that; if the file ends early, says which rows are missing. Durable when
  /// it returns. Errors: those of EndOf, and the file is as it was.
  static Result<MetricsWriter> Resume(const Folder& folder, const std::string& name, uint64_t step,
                                      const std::string& row, const Notify& notify);
  /// Returns where the rows up to `step`, which is committed, end; 0 if the file is missing. What
  /// lies behind is not read. Errors: of RowsUpTo (run/rows/metrics_rows.h); then Resume cannot
  /// continue the file.
  static Result<FileOffset> EndOf(const Folder& folder, const std::string& name, uint64_t step);
  /// Whether a file that is there is one of rows: its first line is a row, or it has none.
  static Result<bool> HoldsRows(const Folder& folder, const std::string& name);
  /// Appends a row, which names the row before it if steps lie between.
  Status Append(const StepRow& row);
  Status Sync() const { return file_.Sync(); }
  /// LineFile::IsAt.
  bool IsAt(const Folder& folder, const std::string& name) const {
    return file_.IsAt(folder, name);
  }

 private:
  MetricsWriter(std::string path, UniqueFd fd) : file_(std::move(path), std::move(fd)) {}

  LineFile file_;
  uint64_t last_step_ = 0;  ///< of the last row; 0: there is none
};

}  // namespace penstock::train
