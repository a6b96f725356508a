#include "run/rank_reports.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string_view>

#include "base/files.h"
#include "run/run_folder.h"

namespace penstock::train {
namespace {

constexpr const char* kFolder = "ranks";
constexpr std::string_view kPrefix = "rank-";
constexpr std::string_view kSuffix = ".txt";

/// Whether a file has the name of a report, or one that a killed rank left before it was whole.
bool IsReport(const std::string& file) {
  const std::string name = WithoutTemporary(file);
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  if (name.size() <= kPrefix.size() + kSuffix.size()) return false;
  const std::string number =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  return number.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Status WriteRankReport(const std::string& run, const std::string& run_uuid, uint32_t rank,
                       const std::string& text) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(run));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(folder));
  if (info.run_uuid != run_uuid) {
    return MakeError(ErrorCode::kNotFound, "{} is another run", run);
  }
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(kFolder));
  // All ranks write at once; the second one finds the folder already made.
  if (entry.kind == FolderEntry::Kind::kNone) static_cast<void>(folder.MakeFolder(kFolder));
  PENSTOCK_ASSIGN(const Folder reports, folder.OpenFolder(kFolder));
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> file,
                  OutputFile::Create(reports, fmt::format("{}{}{}", kPrefix, rank, kSuffix),
                                     Bytes{text.size()}));
  PENSTOCK_TRY(file->Append(std::as_bytes(std::span(text))));
  return file->Show();
}

Result<Folder> OpenReportsFolder(const Folder& run) { return run.OpenFolder(kFolder); }

Result<std::vector<FoundFile>> ReportFiles(const Folder& reports) {
  std::vector<FoundFile> files;
  PENSTOCK_ASSIGN(const std::vector<std::string> names, reports.List());
  for (const std::string& name : names) {
    if (!IsReport(name)) continue;
    PENSTOCK_ASSIGN(const FolderEntry entry, reports.Look(name));
    if (entry.kind != FolderEntry::Kind::kFile) continue;
    files.push_back({.name = name, .id = entry.id, .size = entry.size});
  }
  return files;
}

}  // namespace penstock::train
