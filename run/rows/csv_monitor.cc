#include "run/rows/csv_monitor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <ext/stdio_filebuf.h>
#include <filesystem>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/folder.h"
#include "run/rows/bounded_lines.h"

namespace penstock::train {
namespace {

constexpr mode_t kCurveMode = 0644;
constexpr const char* kPrefix = "Train_Samples_";

std::optional<double> InMilliseconds(const std::optional<double>& seconds) {
  return seconds ? std::optional(*seconds * 1e3) : std::nullopt;
}

/// What a step took beside forward and backward.
std::optional<double> Rest(const StepRow& row) {
  if (!row.forward_s || !row.backward_s) return std::nullopt;
  return std::max(row.step_s - *row.forward_s - *row.backward_s, 0.0);
}

std::string FileName(const std::string& curve) { return kPrefix + curve + ".csv"; }
std::string Header(const std::string& curve) { return "step," + curve + "\r"; }

Result<std::string> FolderOf(const config::CsvMonitor& monitor) {
  return AbsolutePath((std::filesystem::path(monitor.output_path) / monitor.job_name).string());
}

/// The lines of a file that stay.
struct KeptLines {
  off_t end = 0;                ///< end of the lines; 0: not even the header
  uint64_t samples = 0;         ///< samples of the last line; 0: there is none
  bool has_more_lines = false;  ///< there are lines after the header, kept or not
};

/// The samples of a line, or nothing if it is none.
std::optional<uint64_t> SamplesOf(const std::string& line) {
  uint64_t samples = 0;
  const char* const end = line.data() + line.size();
  const auto [comma, error] = std::from_chars(line.data(), end, samples);
  if (error != std::errc() || comma == end || *comma != ',' || samples == 0) return std::nullopt;
  return samples;
}

Error Damaged(const std::string& path, uint64_t line) {
  return MakeError(ErrorCode::kCorruption,
                   "{}, line {}: csv_monitor did not write this; the file is unchanged: repair "
                   "it, or move it away, and the next resume begins a new one",
                   path, line);
}

/// Reads the lines up to `samples`.
Result<KeptLines> LinesUpTo(std::istream& file, const std::string& path, const std::string& header,
                            uint64_t samples) {
  KeptLines kept;
  BoundedLines lines(file, path);
  while (true) {
    const BoundedLines::Line line = lines.Next();
    const bool too_long = line == BoundedLines::Line::kTooLong;
    if (line != BoundedLines::Line::kComplete && !too_long) break;
    const std::string& text = lines.text();
    std::optional<uint64_t> of_line;
    if (!too_long) of_line = SamplesOf(text);
    const bool last = !too_long && lines.AtEnd();
    if (lines.number() == 1) {
      if (text != header) return Damaged(path, lines.number());
    } else {
      kept.has_more_lines = true;
      if (kept.samples >= samples) break;  // everything after the commit is cut
      const bool follows = of_line && *of_line > kept.samples;
      if (!follows && !last) return Damaged(path, lines.number());
      if (!follows || *of_line > samples) break;
      kept.samples = *of_line;
    }
    kept.end += static_cast<off_t>(text.size() + 1);
  }
  PENSTOCK_TRY(lines.status());
  return kept;
}

Result<KeptLines> ReadLines(const Folder& folder, const std::string& curve, uint64_t samples) {
  const std::string name = FileName(curve);
  PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_RDONLY));
  __gnu_cxx::stdio_filebuf<char> buffer(fd.Release(), std::ios::in | std::ios::binary);
  std::istream file(&buffer);
  return LinesUpTo(file, folder.PathOf(name), Header(curve), samples);
}

/// The committed row, as far as curves need it.
StepRow RowFrom(const nlohmann::json& json) {
  const auto number = [&json](const char* key) {
    const auto found = json.find(key);
    const bool is_number = found != json.end() && found->is_number();
    return is_number ? std::optional(found->get<double>()) : std::nullopt;
  };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  StepRow row;
  row.loss = number("loss").value_or(kNone);
  row.lr = number("lr").value_or(kNone);
  row.loss_scale = number("loss_scale").value_or(kNone);
  row.step_s = number("step_s").value_or(kNone);
  row.tokens = static_cast<uint64_t>(number("tokens").value_or(0));
  if (const auto samples = number("samples")) row.samples = static_cast<uint64_t>(*samples);
  row.forward_s = number("forward_s");
  row.backward_s = number("backward_s");
  if (const std::optional<double> previous = number("previous_row")) {
    row.previous_row = static_cast<uint64_t>(*previous);
  }
  return row;
}

/// The samples that the steps before the committed one took; nothing if steps before it were passed
/// over, which have no lines.
std::optional<uint64_t> SamplesBefore(const CsvMonitor::Position& position, const StepRow& row) {
  if (row.previous_row || position.sequence == 0) return std::nullopt;
  return position.samples - std::min(position.samples, row.tokens / position.sequence);
}

std::vector<StepRow> RowsFrom(const std::vector<std::string>& texts) {
  std::vector<StepRow> rows;
  for (const std::string& text : texts) rows.push_back(RowFrom(nlohmann::json::parse(text)));
  return rows;
}

}  // namespace

struct CsvMonitor::Curve {
  std::string name;
  std::optional<double> (*value)(const StepRow& row);

  std::string Line(const StepRow& row, uint64_t samples) const {
    return fmt::format("{},{}\r", samples, *value(row));
  }

  std::string FileOf(const std::vector<StepRow>& rows) const {
    std::string text = Header(name) + "\n";
    for (const StepRow& row : rows) {
      if (row.samples && value(row)) text += Line(row, *row.samples) + "\n";
    }
    return text;
  }
};

const std::vector<CsvMonitor::Curve>& CsvMonitor::AllCurves() {
  using Value = std::optional<double>;
  static const std::vector<Curve> curves = {
      {"train_loss", [](const StepRow& row) { return row.has_loss ? Value(row.loss) : Value(); }},
      {"lr", [](const StepRow& row) -> Value { return row.lr; }},
      {"loss_scale", [](const StepRow& row) -> Value { return row.loss_scale; }},
      {"elapsed_time_ms_forward",
       [](const StepRow& row) -> Value { return InMilliseconds(row.forward_s); }},
      {"elapsed_time_ms_backward",
       [](const StepRow& row) -> Value { return InMilliseconds(row.backward_s); }},
      {"elapsed_time_ms_step",
       [](const StepRow& row) -> Value { return InMilliseconds(Rest(row)); }},
  };
  return curves;
}

std::vector<const CsvMonitor::Curve*> CsvMonitor::CurvesOf(const config::Config& config) {
  std::vector<const Curve*> curves;
  for (const Curve& curve : AllCurves()) {
    if (curve.name == "loss_scale" && !config.loss_scaling) continue;
    if (curve.name.starts_with("elapsed") && !config.wall_clock_breakdown) continue;
    curves.push_back(&curve);
  }
  return curves;
}

Status CsvMonitor::CheckFree(const config::Config& config) {
  if (!config.csv_monitor) return {};
  PENSTOCK_ASSIGN(const std::string path, FolderOf(*config.csv_monitor));
  const Result<Folder> folder = Folder::Open(path);
  if (!folder.ok() && folder.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(folder.status());
  for (const Curve& curve : AllCurves()) {
    PENSTOCK_ASSIGN(const FolderEntry there, folder->Look(FileName(curve.name)));
    if (there.kind == FolderEntry::Kind::kNone) continue;
    const Result<KeptLines> lines = ReadLines(*folder, curve.name, 0);
    if (there.kind != FolderEntry::Kind::kFile) return lines.status();
    if (lines.ok() && !lines->has_more_lines) continue;
    if (!lines.ok() && lines.error().code != ErrorCode::kCorruption) return lines.status();
    return MakeError(ErrorCode::kInvalidArgument,
                     "csv_monitor: {} is there already, of another run; move it away, or give "
                     "another csv_monitor.job_name",
                     folder->PathOf(FileName(curve.name)));
  }
  return {};
}

Result<std::vector<std::string>> CsvMonitor::PathsOf(const config::Config& config) {
  PENSTOCK_ASSIGN(const std::string folder, FolderOf(*config.csv_monitor));
  std::vector<std::string> paths;
  for (const Curve* curve : CurvesOf(config)) {
    paths.push_back((std::filesystem::path(folder) / FileName(curve->name)).string());
  }
  return paths;
}

bool CsvMonitor::IsCurve(const std::string& path) {
  const std::string name = SplitPath(path).second;
  return std::ranges::any_of(AllCurves(),
                             [&name](const Curve& curve) { return name == FileName(curve.name); });
}

Status CsvMonitor::Remove(const std::string& path) {
  const auto [around, name] = SplitPath(path);
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(around));
  for (const Curve& curve : AllCurves()) {
    if (name != FileName(curve.name)) continue;
    const Result<KeptLines> lines = ReadLines(folder, curve.name, 0);
    if (!lines.ok() && lines.error().code == ErrorCode::kCorruption) return {};
    PENSTOCK_TRY(lines.status());
    return folder.RemoveFile(name);
  }
  return {};
}

Result<CsvMonitor> CsvMonitor::Create(const config::Config& config) {
  PENSTOCK_TRY(CheckFree(config));
  return Resume(config, {}, [](const std::string&) {});  // there are no lines to miss
}

Result<CsvMonitor> CsvMonitor::Resume(const config::Config& config, const Position& position,
                                      const Notify& notify) {
  PENSTOCK_ASSIGN(const std::string path, FolderOf(*config.csv_monitor));
  PENSTOCK_TRY(MakeFolders(path).status());
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(path));
  const bool has_row = !position.row.empty();
  const StepRow row = has_row ? RowFrom(nlohmann::json::parse(position.row)) : StepRow();
  const std::optional<uint64_t> before = SamplesBefore(position, row);
  const std::vector<StepRow> rows = RowsFrom(position.rows);
  std::vector<CurveFile> files;
  std::optional<std::string> incomplete;
  for (const Curve* curve : CurvesOf(config)) {
    const std::string name = FileName(curve->name);
    if (!rows.empty()) PENSTOCK_TRY(WriteTextFile(folder, name, curve->FileOf(rows)));
    PENSTOCK_TRY(DropOtherNames(folder, name));
    PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_WRONLY | O_CREAT | O_APPEND, kCurveMode));
    PENSTOCK_ASSIGN(const KeptLines kept, ReadLines(folder, curve->name, position.samples));
    if (::ftruncate(fd.get(), kept.end) != 0) {
      return ErrnoError(errno, "cutting " + folder.PathOf(name));
    }
    if (before && kept.samples < *before) incomplete = folder.PathOf(name);
    LineFile lines(folder.PathOf(name), std::move(fd));
    if (kept.end == 0) PENSTOCK_TRY(lines.Append(Header(curve->name)));
    files.push_back({curve, std::move(lines), kept.samples});
  }
  if (incomplete) {
    notify(fmt::format("csv_monitor: {} has no lines of some steps before the committed one",
                       *incomplete));
  }
  CsvMonitor monitor(std::move(files));
  if (has_row) PENSTOCK_TRY(monitor.Append(row, position.samples));
  PENSTOCK_TRY(monitor.Sync());
  PENSTOCK_TRY(folder.Sync());
  return monitor;
}

Status CsvMonitor::Append(const StepRow& row, uint64_t samples) {
  for (CurveFile& file : files_) {
    if (file.samples >= samples || !file.curve->value(row)) continue;
    PENSTOCK_TRY(file.lines.Append(file.curve->Line(row, samples)));
    file.samples = samples;
  }
  return {};
}

Status CsvMonitor::Sync() const {
  for (const CurveFile& file : files_) PENSTOCK_TRY(file.lines.Sync());
  return {};
}

}  // namespace penstock::train
