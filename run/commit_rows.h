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

/// Copies the rows up to the newest commit of `state` from a run, of which `info` is, to the folder
/// of a copy. A run of the package whose steps report no loss has none. Errors: of ReadCommitTexts
/// for a run of `penstock train`; of CopyRows and CutRows.
Status CopyCommittedRows(const Folder& run, const RunInfo& info, const offload::WholeState& state,
                         const Folder& copy, const Notify& notify);

}  // namespace penstock::train
