// RUN, the folder of one training: run.json, metrics.jsonl, summary.json and, where no home is
// nvme, the state file.
//
// run.json says what the run is and where its state lies, so that export and inspect need no other
// argument. Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/run_lock.h"

namespace penstock::train {

/// The files of a state.
struct StateFiles {
  /// By index of their path: absolute; stored relative to RUN where they lie there.
  std::vector<std::string> paths;
  std::string uuid;
};

/// The contents of run.json.
struct RunInfo {
  std::string version;  ///< of the program that made it
  StateFiles state;
  /// States that are being moved to or from, and that no commit of this run is in: what is there of
  /// them is to be removed.
  std::vector<StateFiles> leftovers;
  /// The snapshot that the state was moved back to, until metrics.jsonl holds its rows.
  std::optional<std::string> rows_from;
  std::string model_json;  ///< the model's config.json, verbatim
  std::string data_path;   ///< absolute
  std::string data_order;  ///< "shuffle", "sequential"
  std::string device;      ///< "cpu", "cuda"
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
};

class RunFolder {
 public:
  /// Makes the folder and those above it, and its name durable. Errors: kInvalidArgument where the
  /// path exists; of mkdir.
  static Result<RunFolder> Create(const std::string& path);
  /// A folder that holds a run already, which is kept. Errors: those of RunLock.
  static Result<RunFolder> Open(const std::string& path);
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) = delete;
  /// Removes the folder again, with what the run put there, unless Keep was called: a run that
  /// fails before the end of its first step leaves nothing that its repetition would stumble over.
  ~RunFolder();

  void Keep() { remove_ = false; }

  const std::string& path() const { return path_; }
  std::string MetricsPath() const { return MetricsPathIn(path_); }
  static std::string MetricsPathIn(const std::string& run);
  std::string SummaryPath() const;

  Status WriteInfo(const RunInfo& info) const;
  Status WriteSummary(const std::string& text) const;

 private:
  RunFolder(std::string path, RunLock lock, bool remove)
      : path_(std::move(path)), lock_(std::move(lock)), remove_(remove) {}

  std::string path_;
  RunLock lock_;  ///< nobody else changes the run
  bool remove_;
};

/// What a run has put into its folder, beside a state file, that is there now: in an order in which
/// it can be removed so that what is left is still known as a run. Errors: kIo.
Result<std::vector<std::string>> FilesOfRun(const std::string& folder);

/// Copies metrics.jsonl from one run to another, whose own it replaces, durably; none is no rows.
Status CopyRows(const std::string& from_run, const std::string& to_run);

/// Writes run.json, durably.
Status WriteRunInfo(const std::string& folder, const RunInfo& info);

/// Reads RUN/run.json. Errors: kNotFound where `folder` is no run, kCorruption where it cannot be
/// read.
Result<RunInfo> ReadRunInfo(const std::string& folder);

}  // namespace penstock::train
