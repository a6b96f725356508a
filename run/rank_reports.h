// RUN/ranks: the report of each rank when a run of several ranks fails, one file a rank.
//
// A report stays until the next failure writes another one; only people read it. Like RUN, the
// folder is not trusted (base/folder.h). Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"

namespace penstock::train {

/// Writes RUN/ranks/rank-N.txt without waiting for a drive, which may be what hangs; it replaces a
/// file, and nothing else. `run` is the path of RUN and `run_uuid` what run.json says there: on the
/// host of this rank the path may lead to another run, or to one that is being removed. Errors: of
/// the folders and the file; of ReadRunInfo; kNotFound for another run.
Status WriteRankReport(const std::string& run, const std::string& run_uuid, uint32_t rank,
                       const std::string& text);

/// Opens the folder of reports. Errors: of Folder::OpenFolder; kNotFound if there is none.
Result<Folder> OpenReportsFolder(const Folder& run);

/// Returns the reports in that folder, and what a rank that was killed left of one. Errors: of
/// Folder::List and Look.
Result<std::vector<FoundFile>> ReportFiles(const Folder& reports);

}  // namespace penstock::train
