#include "run/scratch_folder.h"

#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Removes a folder with all that is in it. On NFS the lock's file stays in it until the lock ends.
Status RemoveAll(const std::string& path, RunLock& lock) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return {};
  lock.Release();
  fs::remove_all(path, error);
  return error ? Status(ErrnoError(error.value(), "removing " + path)) : Status();
}

}  // namespace

Bytes LeftScratch::Size() const {
  Bytes size;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder.path(), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unseen;
    const bool is_file = it->is_regular_file(unseen) && !it->is_symlink(unseen);
    const uint64_t bytes = is_file ? it->file_size(unseen) : 0;
    if (!unseen) size += Bytes{bytes};
  }
  return size;
}

Status LeftScratch::Remove() { return RemoveAll(folder.path(), lock); }

Result<std::optional<LeftScratch>> FindLeftScratch(const Folder& around, const std::string& name) {
  PENSTOCK_ASSIGN(const FolderEntry entry, around.Look(name));
  if (entry.kind == FolderEntry::Kind::kNone) return std::optional<LeftScratch>();
  PENSTOCK_ASSIGN(Folder folder, around.OpenFolder(name));
  PENSTOCK_ASSIGN(RunLock lock, RunLock::TryTake(folder));
  return std::optional(LeftScratch{.folder = std::move(folder), .lock = std::move(lock)});
}

Result<ScratchFolder> ScratchFolder::Make(const std::string& parent, const std::string& name) {
  std::error_code error;
  const fs::path canonical = fs::canonical(parent, error);
  if (error) return ErrnoError(error.value(), "looking at " + parent);
  PENSTOCK_ASSIGN(const Folder around, Folder::Open(canonical.string()));
  PENSTOCK_ASSIGN(std::optional<LeftScratch> left, FindLeftScratch(around, name));
  if (left) PENSTOCK_TRY(left->Remove());
  PENSTOCK_ASSIGN(Folder folder, around.MakeFolder(name));
  PENSTOCK_ASSIGN(RunLock lock, RunLock::TryTake(folder));
  return ScratchFolder(std::move(folder), std::move(lock));
}

ScratchFolder::~ScratchFolder() {
  if (!folder_) return;
  try {
    const Result<bool> there = folder_->IsAt(folder_->path());
    if (there.ok() && *there) static_cast<void>(RemoveAll(folder_->path(), lock_));
  } catch (const std::exception&) {  // out of memory: it stays until its name is needed
    return;
  }
}

}  // namespace penstock::train
