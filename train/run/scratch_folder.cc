#include "train/run/scratch_folder.h"

#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Removes what a killed process left.
Status RemoveLeft(const Folder& around, const std::string& name) {
  PENSTOCK_ASSIGN(const FolderEntry entry, around.Look(name));
  if (entry.kind == FolderEntry::Kind::kNone) return {};
  PENSTOCK_ASSIGN(const Folder left, around.OpenFolder(name));
  PENSTOCK_TRY(RunLock::TryTake(left).status());
  std::error_code error;
  fs::remove_all(left.path(), error);
  return error ? Status(ErrnoError(error.value(), "removing " + left.path())) : Status();
}

}  // namespace

Result<ScratchFolder> ScratchFolder::Make(const std::string& parent, const std::string& name) {
  std::error_code error;
  const fs::path canonical = fs::canonical(parent, error);
  if (error) return ErrnoError(error.value(), "looking at " + parent);
  PENSTOCK_ASSIGN(const Folder around, Folder::Open(canonical.string()));
  PENSTOCK_TRY(RemoveLeft(around, name));
  PENSTOCK_ASSIGN(Folder folder, around.MakeFolder(name));
  PENSTOCK_ASSIGN(RunLock lock, RunLock::TryTake(folder));
  return ScratchFolder(std::move(folder), std::move(lock));
}

ScratchFolder::~ScratchFolder() {
  if (!folder_) return;
  try {
    const Result<bool> there = folder_->IsAt(folder_->path());
    std::error_code ignored;
    if (there.ok() && *there) fs::remove_all(folder_->path(), ignored);
  } catch (const std::exception&) {  // out of memory: it stays until its name is needed
    return;
  }
}

}  // namespace penstock::train
