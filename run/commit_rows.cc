#include "run/commit_rows.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "run/committed_run.h"
#include "run/run_folder.h"
#include "run/snapshot.h"

namespace penstock::train {

std::string RowOfCommit(const std::string& json) {
  const auto texts = nlohmann::ordered_json::parse(
      json, nullptr, /*allow_exceptions=*/false);  // keys have an order
  const bool has_row = texts.is_object() && texts.contains("row") && texts["row"].is_object();
  return has_row ? texts["row"].dump() : std::string();
}

Status CopyCommittedRows(const Folder& run, const RunInfo& info, const offload::WholeState& state,
                         const Folder& copy, const Notify& notify) {
  const uint64_t step = state.commit().head.step;
  std::string row = RowOfCommit(state.commit().json);
  if (info.kind == RunKind::kTrain) {
    PENSTOCK_ASSIGN(CommitTexts texts,
                    ReadCommitTexts(state.commit().json, step, info.state->first()));
    row = std::move(texts.row);
  } else {
    PENSTOCK_ASSIGN(const bool has_rows, HasRows(run));
    if (row.empty() || !has_rows) return {};  // its steps report no loss
  }
  const auto take = [&](const Folder& rows) -> Status {
    PENSTOCK_TRY(CopyRows(rows, copy, step));
    return CutRows(copy, step, row, notify);
  };
  if (!info.rows_from) return take(run);
  PENSTOCK_ASSIGN(const Folder rows, OpenSnapshot(run, *info.rows_from));
  return take(rows);
}

}  // namespace penstock::train
