// RUN/numerics.jsonl, RUN/headroom.jsonl and RUN/overflow.json: a run's findings about its
// numerics. docs/numerics.md has their formats.
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
#include "numerics/headroom_log.h"
#include "numerics/report.h"
#include "run/rows/line_file.h"

namespace penstock::train {

inline constexpr const char* kReportsName = "numerics.jsonl";
inline constexpr const char* kHeadroomName = "headroom.jsonl";
inline constexpr const char* kBlackBoxName = "overflow.json";

/// Appends to numerics.jsonl and headroom.jsonl, which are made when they get their first line.
class NumericsWriter {
 public:
  /// For a run that has no rows yet. `folder` outlives the writer. Errors: kInvalidArgument if one
  /// of the files exists, or overflow.json.
  static Result<NumericsWriter> Create(const Folder& folder);
  /// For a run that resumes after step `step`: durably removes the lines of later steps, and a
  /// damaged line with all after it. Files may be missing. A file that is too large to be read is
  /// renamed (kAside) and reported. Errors: of Folder, for what is no regular file; of renaming.
  static Result<NumericsWriter> Resume(const Folder& folder, uint64_t step, const Notify& notify);

  Status Append(const Report& report);
  /// Appends a line of HeadroomLog.
  Status AppendHeadroom(const std::string& line);
  /// Makes all appended lines durable.
  Status Sync() const;

 private:
  explicit NumericsWriter(const Folder& folder) : folder_(&folder) {}
  Status AppendTo(std::optional<LineFile>& file, const char* name, const std::string& line);

  const Folder* folder_;
  std::optional<LineFile> reports_;
  std::optional<LineFile> headroom_;
};

/// Returns the reports of a run, up to the first line that is damaged; none if there is no file.
/// Errors: of Folder::OpenFile; kInvalidArgument for a file of more than 64 MiB.
Result<std::vector<Report>> ReadReports(const Folder& run);
/// The same for headroom.jsonl.
Result<std::vector<HeadroomRow>> ReadHeadroom(const Folder& run);

/// Writes overflow.json, durably; replaces one that is there.
Status WriteBlackBox(const Folder& run, const std::string& text);

}  // namespace penstock::train
