// The rows of a run up to a commit, for copies of that commit.
//
// Threads: any.
#pragma once

#include <string>

#include "base/folder.h"
#include "base/notify.h"
#include "base/result.h"
#include "offload/whole_state.h"
#include "run/run_info.h"

namespace penstock::train {

/// Returns the row that the text of a commit has, as in metrics.jsonl; empty if it has none.
std::string RowOfCommit(const std::string& json);

/// Has metrics.jsonl of a run that resumes from a commit of `step` hold the rows of the steps up to
/// it, which are those of `from` (RunInfo::rows_from). If they are gone, what the run has is of
/// steps that were given up: it is put aside, which a notice says. Errors: of CopyRows; of
/// renaming.
Status TakeRows(const Folder& run, const std::string& from, uint64_t step, const Notify& notify);

/// Copies the rows up to the newest commit of `state` from a run, of which `info` is, to the folder
/// of a copy. A run of the package whose steps report no loss has none. Errors: of ReadCommitTexts
/// for a run of `penstock train`; of CopyRows and CutRows.
Status CopyCommittedRows(const Folder& run, const RunInfo& info, const offload::WholeState& state,
                         const Folder& copy, const Notify& notify);

}  // namespace penstock::train
