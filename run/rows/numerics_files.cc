#include "run/rows/numerics_files.h"

#include <fcntl.h>

#include <sstream>

#include "base/files.h"
#include "run/rows/put_aside.h"

namespace penstock::train {
namespace {

constexpr mode_t kLinesMode = 0644;
constexpr Bytes kMaxLines = 64_MiB;

/// The text of a file; nothing if there is none.
Result<std::optional<std::string>> ReadLines(const Folder& folder, const char* name) {
  Result<std::string> text = ReadTextFile(folder, name, kMaxLines);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) {
    return std::optional<std::string>();
  }
  PENSTOCK_TRY(text.status());
  return std::optional(*std::move(text));
}

/// Calls `visit` with each line and what `parse` makes of it, up to the first of which it makes
/// nothing, or that has no line break.
template <typename Parse, typename Visit>
void ForEachLine(const std::string& text, Parse parse, Visit visit) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line) && !lines.eof()) {
    auto parsed = parse(line);
    if (!parsed) return;
    visit(line, *std::move(parsed));
  }
}

/// Leaves the lines of steps up to `step`. They need not be in the order of steps: an update's
/// report may stand behind one of the next step.
template <typename Parse>
Status CutLines(const Folder& folder, const char* name, uint64_t step, Parse parse) {
  PENSTOCK_ASSIGN(const std::optional<std::string> text, ReadLines(folder, name));
  if (!text) return {};
  std::string kept;
  ForEachLine(*text, parse, [&](const std::string& line, const auto& parsed) {
    if (parsed.step <= step) kept += line + "\n";
  });
  return kept == *text ? Status() : WriteTextFile(folder, name, kept);
}

template <typename Parse>
auto ReadAll(const Folder& folder, const char* name, Parse parse)
    -> Result<std::vector<typename decltype(parse(""))::value_type>> {
  std::vector<typename decltype(parse(""))::value_type> all;
  PENSTOCK_ASSIGN(const std::optional<std::string> text, ReadLines(folder, name));
  if (!text) return all;
  ForEachLine(*text, parse, [&](const std::string&, auto parsed) { all.push_back(parsed); });
  return all;
}

/// No training depends on these files: one that cannot be used makes room for another. What is no
/// file is not touched.
Status OrPutAside(const Folder& folder, const char* name, const Status& used,
                  const Notify& notify) {
  if (used.ok()) return {};
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(name));
  if (entry.kind != FolderEntry::Kind::kFile) return used;
  return PutAside(folder, name, used.error().message, notify);
}

Status CheckFree(const Folder& folder, const char* name) {
  PENSTOCK_ASSIGN(const FolderEntry there, folder.Look(name));
  if (there.kind == FolderEntry::Kind::kNone) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} was there before the rows of this run; move it away", folder.PathOf(name));
}

}  // namespace

Result<NumericsWriter> NumericsWriter::Create(const Folder& folder) {
  PENSTOCK_TRY(CheckFree(folder, kReportsName));
  PENSTOCK_TRY(CheckFree(folder, kHeadroomName));
  PENSTOCK_TRY(CheckFree(folder, kBlackBoxName));
  return NumericsWriter(folder);
}

Result<NumericsWriter> NumericsWriter::Resume(const Folder& folder, uint64_t step,
                                              const Notify& notify) {
  const Status reports = CutLines(folder, kReportsName, step, ParseReport);
  PENSTOCK_TRY(OrPutAside(folder, kReportsName, reports, notify));
  const Status headroom = CutLines(folder, kHeadroomName, step, ParseHeadroomRow);
  PENSTOCK_TRY(OrPutAside(folder, kHeadroomName, headroom, notify));
  return NumericsWriter(folder);
}

Status NumericsWriter::AppendTo(std::optional<LineFile>& file, const char* name,
                                const std::string& line) {
  if (!file) {
    PENSTOCK_TRY(DropOtherNames(*folder_, name));
    PENSTOCK_ASSIGN(UniqueFd fd,
                    folder_->OpenFile(name, O_WRONLY | O_CREAT | O_APPEND, kLinesMode));
    file.emplace(folder_->PathOf(name), std::move(fd));
    PENSTOCK_TRY(folder_->Sync());
  }
  return file->Append(line);
}

Status NumericsWriter::Append(const Report& report) {
  return AppendTo(reports_, kReportsName, ToJson(report));
}

Status NumericsWriter::AppendHeadroom(const std::string& line) {
  return AppendTo(headroom_, kHeadroomName, line);
}

Status NumericsWriter::Sync() const {
  if (reports_) PENSTOCK_TRY(reports_->Sync());
  return headroom_ ? headroom_->Sync() : Status();
}

Result<std::vector<Report>> ReadReports(const Folder& run) {
  return ReadAll(run, kReportsName, ParseReport);
}

Result<std::vector<HeadroomRow>> ReadHeadroom(const Folder& run) {
  return ReadAll(run, kHeadroomName, ParseHeadroomRow);
}

Status WriteBlackBox(const Folder& run, const std::string& text) {
  return WriteTextFile(run, kBlackBoxName, text);
}

}  // namespace penstock::train
