#include "run/rows/metrics_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "run/rows/bounded_lines.h"

namespace penstock::train {
namespace {

/// All rows have these.
constexpr const char* kFieldsOfRows[] = {"loss",       "grad_norm", "lr",
                                         "loss_scale", "skipped",   "step_s"};

struct Row {
  uint64_t step = 0;
  uint64_t previous = 0;  ///< the step of the row before it, which a gap may have left far behind
};

bool HasNumber(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_number_unsigned();
}

/// Returns nothing if the line is not a row.
std::optional<Row> ReadRow(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !HasNumber(json, "step") || json["step"] == 0) return {};
  const auto step = json["step"].get<uint64_t>();
  if (!HasNumber(json, kPreviousRow)) return Row{.step = step, .previous = step - 1};
  return Row{.step = step, .previous = json[kPreviousRow].get<uint64_t>()};
}

Error Damaged(const std::string& path, uint64_t line, FileOffset begin, const std::string& what) {
  return MakeError(
      ErrorCode::kCorruption,
      "{}, line {} (from byte {} on): {}; the file is unchanged: repair it, or move "
      "it away, and the next resume begins a new one with the row of the committed step",
      path, line, begin.value, what);
}

}  // namespace

Result<KeptRows> RowsUpTo(std::istream& file, const std::string& path, uint64_t step) {
  KeptRows kept;
  BoundedLines lines(file, path);
  using Line = BoundedLines::Line;
  for (Line line = lines.Next(); line != Line::kEnd; line = lines.Next()) {
    const std::optional<Row> row = line == Line::kComplete ? ReadRow(lines.text()) : std::nullopt;
    const bool first = kept.first_step == 0;
    const bool follows =
        row && (first || (row->previous == kept.last_step && row->step > kept.last_step));
    if (follows && row->step > step) break;
    if (!follows) {
      // The commit has the row of its step, and rows after it have to go.
      if (kept.last_step + 1 >= step) break;
      if (line == Line::kTooLong) return lines.TooLong();
      const bool torn = !row && lines.AtEnd();
      if (torn) break;
      return Damaged(path, lines.number(), kept.end,
                     row ? fmt::format("it is the row of step {}, where that of step {} belongs",
                                       row->step, kept.last_step + 1)
                         : fmt::format("the row of step {} is damaged", kept.last_step + 1));
    }
    if (first) kept.first_step = row->step;
    kept.last_step = row->step;
    kept.last_row = lines.text();
    kept.end = kept.end + Bytes{lines.text().size() + 1};
  }
  PENSTOCK_TRY(lines.status());
  return kept;
}

Result<bool> BeginsWithRow(std::istream& file, const std::string& path) {
  BoundedLines lines(file, path);
  const BoundedLines::Line line = lines.Next();
  PENSTOCK_TRY(lines.status());
  if (line == BoundedLines::Line::kEnd) return true;
  if (line != BoundedLines::Line::kComplete || !ReadRow(lines.text())) return false;
  const auto row = nlohmann::json::parse(lines.text());
  return std::ranges::all_of(kFieldsOfRows, [&row](const char* key) { return row.contains(key); });
}

bool AreOfOneStep(const std::string& line, const std::string& row) {
  constexpr const char* kOutcome[] = {"step", "loss", "grad_norm", "lr", "loss_scale", "skipped"};
  auto of_line = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  auto of_row = nlohmann::json::parse(row, nullptr, /*allow_exceptions=*/false);
  if (!of_line.is_object() || !of_row.is_object()) return false;
  if (of_row.contains("samples")) {  // of a caller: it is written when the step ends
    for (nlohmann::json* json : {&of_line, &of_row}) json->erase(kPreviousRow);
    return of_line == of_row;
  }
  return std::ranges::all_of(kOutcome, [&](const char* key) {
    return of_line.value(key, nlohmann::json()) == of_row.value(key, nlohmann::json());
  });
}

uint64_t RowBefore(const std::string& row, uint64_t step) {
  const std::optional<Row> read = ReadRow(row);
  if (read && read->step == step) return read->previous;
  return step == 0 ? 0 : step - 1;
}

std::string AfterGap(const std::string& row, uint64_t previous) {
  auto json = nlohmann::ordered_json::parse(row);
  json[kPreviousRow] = previous;
  return json.dump();
}

}  // namespace penstock::train
