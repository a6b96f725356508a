#include "run/run_info_fields.h"

#include <fmt/format.h>

#include <filesystem>

#include "run/made_files.h"
#include "run/snapshot.h"

namespace penstock::train {
namespace {

Result<RunChange> ChangeFrom(const JsonFields& fields) {
  PENSTOCK_TRY(fields.CheckKeys({"step", "key", "old", "new"}));
  RunChange change;
  PENSTOCK_ASSIGN(change.step, fields.Whole("step"));
  PENSTOCK_ASSIGN(change.key, fields.Text("key"));
  PENSTOCK_ASSIGN(const nlohmann::json* const before, fields.Value("old"));
  PENSTOCK_ASSIGN(const nlohmann::json* const after, fields.Value("new"));
  change.before = before->dump();
  change.after = after->dump();
  return change;
}

Result<StepRange> SkipFrom(const JsonFields& fields, const Folder& run) {
  PENSTOCK_TRY(fields.CheckKeys({"first", "last"}));
  StepRange range;
  PENSTOCK_ASSIGN(range.first, fields.Whole("first"));
  PENSTOCK_ASSIGN(range.last, fields.Whole("last"));
  if (range.first > 0 && range.last >= range.first && range.last <= kLastStepNumber) return range;
  return DamagedInfo(run, "no run passes over steps " + ToText(range));
}

}  // namespace

Status ReadNotes(const JsonFields& fields, const Folder& run, RunInfo* info) {
  if (fields.Has("rows_from")) {
    PENSTOCK_ASSIGN(info->rows_from, fields.Text("rows_from"));
    const bool is_path =
        info->kind != RunKind::kTrain && std::filesystem::path(*info->rows_from).is_absolute();
    const Status name = is_path ? Status() : CheckSnapshotName(*info->rows_from);
    if (!name.ok()) return DamagedInfo(run, name.error().message);
  }
  if (fields.Has("made_files")) {
    PENSTOCK_ASSIGN(info->made_files, fields.Texts("made_files"));
    for (const std::string& file : info->made_files) {
      if (!CanBeMade(file)) return DamagedInfo(run, fmt::format("no run makes \"{}\"", file));
    }
  }
  if (fields.Has("copying")) {
    PENSTOCK_ASSIGN(info->copying, fields.Name("copying"));
    if (!std::filesystem::path(*info->copying).is_absolute()) {
      return DamagedInfo(run,
                         fmt::format("copying is \"{}\", not an absolute path", *info->copying));
    }
  }
  if (fields.Has("automatic")) {
    PENSTOCK_ASSIGN(info->automatic, fields.Whole("automatic"));
  }
  if (fields.Has("changes")) {
    PENSTOCK_ASSIGN(const std::vector<JsonFields> changes, fields.Objects("changes"));
    for (const JsonFields& entry : changes) {
      PENSTOCK_ASSIGN(RunChange change, ChangeFrom(entry));
      info->changes.push_back(std::move(change));
    }
  }
  if (fields.Has("skip_steps")) {
    PENSTOCK_ASSIGN(const std::vector<JsonFields> skips, fields.Objects("skip_steps"));
    for (const JsonFields& entry : skips) {
      PENSTOCK_ASSIGN(const StepRange range, SkipFrom(entry, run));
      info->skip_steps.push_back(range);
    }
  }
  return {};
}

Result<RunTraining> TrainingFrom(const JsonFields& fields) {
  RunTraining training;
  PENSTOCK_ASSIGN(training.model_json, fields.Text("model"));
  PENSTOCK_ASSIGN(const JsonFields data, fields.Object("data"));
  PENSTOCK_ASSIGN(training.data_path, data.Text("path"));
  PENSTOCK_ASSIGN(training.data_order, data.Text("order"));
  PENSTOCK_ASSIGN(training.seed, fields.Whole("seed"));
  PENSTOCK_ASSIGN(training.sequence_length, fields.Whole("sequence_length"));
  PENSTOCK_ASSIGN(training.device, fields.Text("device"));
  return training;
}

}  // namespace penstock::train
