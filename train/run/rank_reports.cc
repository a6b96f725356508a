#include "train/run/rank_reports.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <string_view>

#include "train/process/files.h"
#include "train/run/run_folder.h"

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
  const std::string_view number =
      std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Status WriteRankReport(const std::string& run, uint32_t rank, const std::string& text) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(run));
  PENSTOCK_TRY(folder.OpenFile(kInfoName, O_RDONLY).status());
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(kFolder));
  // All ranks write at once; whoever comes second finds the folder there.
  if (entry.kind == FolderEntry::Kind::kNone) static_cast<void>(folder.MakeFolder(kFolder));
  PENSTOCK_ASSIGN(const Folder reports, folder.OpenFolder(kFolder));
  return WriteTextFile(reports, fmt::format("{}{}{}", kPrefix, rank, kSuffix), text);
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
