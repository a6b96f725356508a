#include "run/run_copy.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "offload/state_copy.h"
#include "offload/state_names.h"
#include "offload/state_removal.h"
#include "offload/uuid.h"
#include "run/commit_rows.h"
#include "run/held_run.h"
#include "run/run_folder.h"
#include "run/run_lock.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// The files of a state, in a folder.
StateFiles FilesIn(const Folder& folder, const StateFiles& state) {
  StateFiles files = state;
  for (RankFiles& rank : files.ranks) {
    for (std::string& path : rank.paths) path = folder.PathOf(SplitPath(path).second);
  }
  return files;
}

std::string UnfinishedName(const std::string& name) { return fmt::format(".{}.unfinished", name); }

/// The existing files of the state of an unfinished copy.
Result<StateFiles> FilesOfUnfinishedCopy(const Folder& folder) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) return StateFiles();
  PENSTOCK_TRY(info.status());
  std::vector<StateFiles> states = info->leftovers;
  if (info->state) states.push_back(*info->state);
  StateFiles found{.ranks = {RankFiles()}, .uuid = {}};
  for (const StateFiles& state : states) {
    found.uuid = state.uuid;  // they are the same
    for (const std::string& whole : FilesIn(folder, state).all()) {
      for (const std::string& path : {whole, offload::UnfinishedCopy(whole)}) {
        std::error_code ignored;
        if (!fs::exists(fs::symlink_status(path, ignored))) continue;
        found.ranks.front().paths.push_back(path);
      }
    }
  }
  return found;
}

/// Removes an unfinished copy. Stops at the first thing that is not the copy's, and leaves the
/// rest.
Status RemoveUnfinished(const Folder& around, const std::string& name, const Folder& folder,
                        RunLock& lock) {
  PENSTOCK_ASSIGN(const StateFiles state, FilesOfUnfinishedCopy(folder));
  for (const std::string& path : state.all()) {
    PENSTOCK_ASSIGN(auto file, offload::RemovableState::Open(path, state.uuid));
    PENSTOCK_TRY(file.Remove());
  }
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, FilesOfRun(folder));
  for (const FoundFile& file : files) PENSTOCK_TRY(folder.RemoveFile(file.name, file.id));
  return lock.RemoveFolder(around, name);
}

/// Errors: kInvalidArgument if a folder is no unfinished copy to `path`.
Status CheckIsLeft(const Folder& left, const std::string& path) {
  const Result<RunInfo> info = ReadRunInfo(left);
  PENSTOCK_ASSIGN(const bool begun, EndedAtItsBeginning(left));
  if (begun || (info.ok() && info->place == path)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} is there and no unfinished copy of a run; take another name for the "
                   "snapshot, or remove that folder",
                   left.path());
}

/// Removes what a killed process left of a copy to `path`. Errors: kUnavailable while a process
/// makes it, or if one has just finished it; kInvalidArgument if it was not made for that.
Status RemoveLeft(const Folder& around, const std::string& name, const std::string& path) {
  PENSTOCK_ASSIGN(const FolderEntry entry, around.Look(name));
  if (entry.kind == FolderEntry::Kind::kNone) return {};
  if (around.RemoveFolder(name).ok()) return {};  // an empty one
  PENSTOCK_ASSIGN(const Folder left, around.OpenFolder(name));
  PENSTOCK_TRY(CheckIsLeft(left, path));  // before a lock is made in it
  PENSTOCK_ASSIGN(RunLock lock, RunLock::TryTakeAt(around, name, left));
  PENSTOCK_TRY(CheckIsLeft(left, path));
  return RemoveUnfinished(around, name, left, lock);
}

Status Fill(const Folder& folder, RunInfo info, const offload::WholeState& state) {
  const StateFiles targets = FilesIn(folder, *std::exchange(info.state, std::nullopt));
  info.leftovers = {targets};
  PENSTOCK_TRY(WriteRunInfo(folder, info));
  PENSTOCK_TRY(offload::CopyState(state, targets.paths(), [] { return false; }));
  info.leftovers.clear();
  info.state = targets;
  return WriteRunInfo(folder, info);
}

}  // namespace

Result<std::optional<LeftCopy>> FindLeftCopy(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  Result<Folder> around = Folder::Open(parent);
  if (!around.ok() && around.error().code == ErrorCode::kNotFound) return std::optional<LeftCopy>();
  PENSTOCK_TRY(around.status());
  Result<Folder> folder = around->OpenFolder(UnfinishedName(name));
  if (!folder.ok() && folder.error().code == ErrorCode::kNotFound) return std::optional<LeftCopy>();
  PENSTOCK_TRY(folder.status());
  PENSTOCK_TRY(CheckIsLeft(*folder, path));
  PENSTOCK_ASSIGN(StateFiles state, FilesOfUnfinishedCopy(*folder));
  return std::optional(LeftCopy{*std::move(around), *std::move(folder), std::move(state)});
}

Status RemoveLeftCopy(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  const Result<Folder> around = Folder::Open(parent);
  if (!around.ok() && around.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(around.status());
  return RemoveLeft(*around, UnfinishedName(name), path);
}

Result<std::string> CopyRun(const Folder& run, const RunInfo& info,
                            const offload::WholeState& state, const std::string& path,
                            const Notify& notify) {
  PENSTOCK_ASSIGN(const std::string target, CanonicalPath(path));
  const auto [parent, name] = SplitPath(target);
  if (name.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "{} is there already; name another snapshot",
                     target);
  }
  PENSTOCK_TRY(MakeFolders(parent).status());
  PENSTOCK_ASSIGN(const Folder around, Folder::Open(parent));
  PENSTOCK_ASSIGN(const FolderEntry taken, around.Look(name));
  if (taken.kind != FolderEntry::Kind::kNone) {
    return MakeError(ErrorCode::kInvalidArgument, "{} is there already; name another snapshot",
                     target);
  }
  const std::string unfinished = UnfinishedName(name);
  PENSTOCK_TRY(RemoveLeft(around, unfinished, target));
  RunInfo own = info;
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  own.run_uuid = offload::ToString(uuid);
  own.place = target;
  own.temporary = false;
  own.copying.reset();
  PENSTOCK_ASSIGN(const Folder folder, around.MakeFolder(unfinished));
  PENSTOCK_ASSIGN(RunLock lock, RunLock::TryTake(folder));
  Status made = Fill(folder, std::move(own), state);
  if (made.ok()) made = CopyCommittedRows(run, info, state, folder, notify);
  if (made.ok()) made = around.Rename(unfinished, name);
  if (made.ok()) {
    made = around.Sync();
    if (made.ok()) return target;
    // A copy that has its name is whole, and stays if that cannot be taken back.
    if (!around.Rename(name, unfinished).ok()) return made.error();
  }
  static_cast<void>(RemoveUnfinished(around, unfinished, folder, lock));
  return made.error();
}

}  // namespace penstock::train
