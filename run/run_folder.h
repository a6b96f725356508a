// RUN, the folder of one training: run.json, metrics.jsonl, summary.json and, where no home is
// nvme, the state file.
//
// run.json says what the run is and where its state lies, so that export and inspect need no other
// argument. All of these files are used through the folder's descriptor (base/folder.h): once RUN
// is open, the user may move or replace it, and no other folder is read or changed. Threads: one at
// a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/folder_watch.h"
#include "base/notify.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "run/rows/metrics_file.h"
#include "run/run_info.h"
#include "run/run_lock.h"

namespace penstock::train {

class RunFolder {
 public:
  /// Creates the folder and those above it, durably. One in which a run ended before its first
  /// commit is used, and what that run left is removed. Errors: kInvalidArgument if anything else
  /// is there; kUnavailable if another process begins a run there; of mkdir.
  static Result<RunFolder> Create(const std::string& path);
  /// Opens a folder that holds a run already, which is kept. Errors: those of ReadRunInfo, before a
  /// lock is made, and of RunLock.
  static Result<RunFolder> Open(const std::string& path);
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) = delete;
  /// Unless Keep was called, removes what the run put into the folder, and the folder if it is then
  /// empty: a run that fails before it has a commit or a row leaves nothing in the way of another
  /// attempt.
  ~RunFolder();

  void Keep() { created_in_.reset(); }

  /// Returns the folder, whose path is absolute and has no links.
  const Folder& folder() const { return folder_; }
  const std::string& path() const { return folder_.path(); }
  std::string SummaryPath() const;

  Status WriteInfo(const RunInfo& info) const;
  /// Writes the run.json of a run whose first commit is durable, and watches it from now on.
  /// Precondition: Watch.
  Status NameFirstCommit(const RunInfo& info, const Notify& notify);
  Status WriteSummary(const std::string& text) const;
  Result<bool> HasSummary() const;
  /// The writer of metrics.jsonl; see MetricsWriter.
  Result<MetricsWriter> CreateRows() const;
  Result<MetricsWriter> ResumeRows(uint64_t step, const std::string& row,
                                   const Notify& notify) const;

  /// Remembers run.json and metrics.jsonl as they are now (base/folder_watch.h).
  Status Watch();
  /// FolderWatch::Check. Precondition: Watch.
  Status CheckWhole() const;

 private:
  RunFolder(Folder folder, RunLock lock, std::optional<Folder> created_in)
      : folder_(std::move(folder)), lock_(std::move(lock)), created_in_(std::move(created_in)) {}

  Folder folder_;
  RunLock lock_;                      ///< no other process changes the run
  std::optional<Folder> created_in_;  ///< parent folder of a new run that is not kept
  std::optional<FolderWatch> watch_;
};

/// Removes the run at `path` as a folder that is not kept does, if its UUID is this or it is empty:
/// for a process that ends at once. Threads: any.
void RemoveNewRun(const std::string& path, const std::string& run_uuid);

/// Whether nothing is in a folder but what a run leaves that is killed before it has a run.json;
/// also if it is empty. Errors: kIo.
Result<bool> EndedAtItsBeginning(const Folder& run);

/// Returns the files that a run has put into its folder and that still exist, except state files,
/// in an order of removal in which the rest is still recognised as a run. Errors: kIo.
Result<std::vector<FoundFile>> FilesOfRun(const Folder& run);

/// Whether a run has rows. Errors: of Folder::Look.
Result<bool> HasRows(const Folder& run);
/// Copies the rows up to step `step` from one run to another, whose metrics.jsonl they replace,
/// durably. A missing file means no rows. Errors: those of CheckRows.
Status CopyRows(const Folder& from, const Folder& to, uint64_t step);
/// Checks that the rows of a run before that of step `step` are complete; see MetricsWriter::EndOf.
Status CheckRows(const Folder& run, uint64_t step);
/// Cuts the rows of a run back to those up to `step`; see MetricsWriter::Resume.
Status CutRows(const Folder& run, uint64_t step, const std::string& row, const Notify& notify);

inline constexpr const char* kMetricsName = "metrics.jsonl";
/// Reads run.json. Errors: kNotFound if `run` is not a run, kCorruption if it cannot be read.
Result<RunInfo> ReadRunInfo(const Folder& run);
Result<RunInfo> ReadRunInfo(const std::string& path);

/// Opens a folder that should be a run's. Errors: kNotFound if it does not exist, as in
/// ReadRunInfo.
Result<Folder> OpenRun(const std::string& path);

}  // namespace penstock::train
