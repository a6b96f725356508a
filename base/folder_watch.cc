#include "base/folder_watch.h"

#include <fcntl.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock {

Result<FolderWatch> FolderWatch::Begin(const Folder& folder,
                                       const std::vector<std::string>& names) {
  std::vector<File> files;
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_RDONLY));
    files.push_back({.name = name, .fd = std::move(fd)});
  }
  PENSTOCK_ASSIGN(Folder own, folder.Reopen());
  return FolderWatch(std::move(own), std::move(files));
}

Status FolderWatch::Check() const {
  PENSTOCK_ASSIGN(const bool at_path, folder_.IsAt(folder_.path()));
  if (!at_path) {
    std::error_code ignored;
    const bool replaced =
        std::filesystem::exists(std::filesystem::symlink_status(folder_.path(), ignored));
    return MakeError(ErrorCode::kNotFound, "{} was {} while it was being trained", folder_.path(),
                     replaced ? "replaced by something else" : "removed or moved away");
  }
  for (const File& file : files_) {
    const Result<FileId> own = IdOf(file.fd.get(), folder_.PathOf(file.name));
    const bool gone = !own.ok() && own.error().code == ErrorCode::kNotFound;
    if (!gone) PENSTOCK_TRY(own.status());
    PENSTOCK_ASSIGN(const FolderEntry there, folder_.Look(file.name));
    if (!gone && there.id == *own) continue;
    return MakeError(ErrorCode::kNotFound, "{} was {} while the run was being trained",
                     folder_.PathOf(file.name),
                     there.kind == FolderEntry::Kind::kNone ? "removed" : "replaced by another");
  }
  return {};
}

}  // namespace penstock
