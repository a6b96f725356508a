#include "run/commit_rows.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "run/committed_run.h"
#include "run/rows/put_aside.h"
#include "run/run_folder.h"
#include "run/snapshot.h"

namespace penstock::train {

namespace {

/// `from`: RunInfo::rows_from.
Result<Folder> OpenRowsOf(const Folder& run, const std::string& from) {
  return std::filesystem::path(from).is_absolute() ? Folder::Open(from) : OpenSnapshot(run, from);
}

/// Whether the rows of a run of the package can be read: no snapshot depends on them.
bool HoldsRowsOf(const Folder& run, const RunInfo& info, uint64_t step) {
  const auto holds = [step](const Folder& folder) {
    const Result<bool> rows = MetricsWriter::HoldsRows(folder, kMetricsName);
    return rows.ok() && *rows && CheckRows(folder, step).ok();
  };
  if (!info.rows_from) return holds(run);
  const Result<Folder> from = OpenRowsOf(run, *info.rows_from);
  return from.ok() && holds(*from);
}

}  // namespace

std::string RowOfCommit(const std::string& json) {
  const auto texts = nlohmann::ordered_json::parse(
      json, nullptr, /*allow_exceptions=*/false);  // keys have an order
  const bool has_row = texts.is_object() && texts.contains("row") && texts["row"].is_object();
  return has_row ? texts["row"].dump() : std::string();
}

Status TakeRows(const Folder& run, const std::string& from, uint64_t step, const Notify& notify) {
  const Result<Folder> snapshot = OpenRowsOf(run, from);
  if (snapshot.ok()) {
    PENSTOCK_ASSIGN(const bool has_rows, HasRows(*snapshot));
    if (has_rows) return CopyRows(*snapshot, run, step);
  }
  PENSTOCK_ASSIGN(const bool has_own, HasRows(run));
  if (!has_own) return {};
  return PutAside(run, kMetricsName,
                  fmt::format("the snapshot {} has no rows, and {} is of other steps", from,
                              run.PathOf(kMetricsName)),
                  notify);
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
    const bool has_rows = HoldsRowsOf(run, info, step);
    if (row.empty() && !has_rows) return {};  // its steps report no loss
    if (!has_rows) return CutRows(copy, step, row, notify);
  }
  const auto take = [&](const Folder& rows) -> Status {
    PENSTOCK_TRY(CopyRows(rows, copy, step));
    return CutRows(copy, step, row, notify);
  };
  if (!info.rows_from) return take(run);
  PENSTOCK_ASSIGN(const Folder rows, OpenRowsOf(run, *info.rows_from));
  return take(rows);
}

}  // namespace penstock::train
