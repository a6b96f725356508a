// The curves of a run as the CSV files of DeepSpeed's csv_monitor. docs/metrics.md has their
// format.
//
// They hold the values of metrics.jsonl for tools that read DeepSpeed's files: one file a curve,
// one line a step. Lines are written when the row is, and made durable when rows are. So a resumed
// run has at most the line of the committed step to add, whose row the commit holds.
//
// Threads: as of a LineFile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/notify.h"
#include "base/result.h"
#include "config/config.h"
#include "run/rows/line_file.h"
#include "run/rows/metrics_file.h"

namespace penstock::train {

class CsvMonitor {
 public:
  /// Checks that a new run finds no lines of another in its files, or has no monitor. Errors:
  /// kInvalidArgument, naming the file; of reading.
  static Status CheckFree(const config::Config& config);

  /// The absolute paths of the files that a configuration with a monitor has. Errors: of the path.
  static Result<std::vector<std::string>> PathsOf(const config::Config& config);
  /// Whether this is the path of a file that a monitor makes, as far as its name says.
  static bool IsCurve(const std::string& path);
  /// Removes such a file, unless something else has its name. Errors: of reading; of removing.
  static Status Remove(const std::string& path);

  /// Makes the files, with their headers, and the folder. Precondition of this and of Resume:
  /// `config` has a monitor. Errors: as CheckFree; of the file system.
  static Result<CsvMonitor> Create(const config::Config& config);

  /// The point from which a run resumes.
  struct Position {
    uint64_t samples = 0;   ///< rows of the data that the steps up to the committed one took
    uint64_t sequence = 0;  ///< tokens of one of them
    std::string row;        ///< of the committed step, as in metrics.jsonl; empty for step 0
    /// Of all steps up to it, if the files may have lines of others: these take their place.
    std::vector<std::string> rows = {};
  };
  /// Cuts the files back to the committed step, and adds its line where that is missing. Makes
  /// missing files, and logs if lines before it are missing. Durable when it returns. Errors:
  /// kCorruption, naming the line, if a line that is not the last one is damaged: the file is
  /// unchanged.
  static Result<CsvMonitor> Resume(const config::Config& config, const Position& position,
                                   const Notify& notify);

  /// Appends the lines of a step. `samples`: what all steps up to it took. After an error it can be
  /// called again with the same step: no file gets two lines of it.
  Status Append(const StepRow& row, uint64_t samples);
  Status Sync() const;

 private:
  /// What a file holds of a step.
  struct Curve;
  struct CurveFile {
    const Curve* curve;
    LineFile lines;
    uint64_t samples;  ///< of its last line; 0: it has none
  };
  static const std::vector<Curve>& AllCurves();
  static std::vector<const Curve*> CurvesOf(const config::Config& config);

  explicit CsvMonitor(std::vector<CurveFile> files) : files_(std::move(files)) {}

  std::vector<CurveFile> files_;
};

}  // namespace penstock::train
