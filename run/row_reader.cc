#include "run/row_reader.h"

#include <fcntl.h>

#include <ext/stdio_filebuf.h>
#include <istream>
#include <limits>
#include <string>
#include <utility>

#include "run/rows/bounded_lines.h"
#include "run/run_folder.h"

namespace penstock::train {

Status ForEachRow(const Folder& run,
                  const std::function<void(uint64_t step, nlohmann::json row)>& take) {
  Result<UniqueFd> fd = run.OpenFile(kMetricsName, O_RDONLY);
  if (!fd.ok() && fd.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(fd.status());
  __gnu_cxx::stdio_filebuf<char> buffer(fd->Release(), std::ios::in | std::ios::binary);
  std::istream file(&buffer);
  BoundedLines lines(file, run.PathOf(kMetricsName));
  using Line = BoundedLines::Line;
  for (Line line = lines.Next(); line != Line::kEnd; line = lines.Next()) {
    if (line == Line::kTooLong) return lines.TooLong();
    auto row = nlohmann::json::parse(lines.text(), nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !FieldOf(row, "step").is_number_unsigned()) continue;
    const auto step = row["step"].get<uint64_t>();
    take(step, std::move(row));
  }
  return lines.status();
}

const nlohmann::json& FieldOf(const nlohmann::json& row, const char* key) {
  static const nlohmann::json kNone;
  const auto found = row.find(key);
  return found == row.end() ? kNone : *found;
}

double NumberOf(const nlohmann::json& row, const char* key) {
  const nlohmann::json& value = FieldOf(row, key);
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

Result<std::vector<NumericsRow>> ReadNumericsRows(const Folder& run) {
  std::vector<NumericsRow> rows;
  PENSTOCK_TRY(ForEachRow(run, [&rows](uint64_t step, const nlohmann::json& row) {
    if (!rows.empty() && step <= rows.back().step) return;
    rows.push_back({.step = step,
                    .loss = NumberOf(row, "loss"),
                    .grad_norm = NumberOf(row, "grad_norm"),
                    .loss_scale = NumberOf(row, "loss_scale"),
                    .skipped = FieldOf(row, "skipped") == true});
  }));
  return rows;
}

}  // namespace penstock::train
