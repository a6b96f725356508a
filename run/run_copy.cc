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

/// Removes an unfinished copy. Stops at the first thing that is not the copy's, and leaves the
/// rest.
Status RemoveUnfinished(const Folder& around, const std::string& name, const Folder& folder,
                        RunLock& lock) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  if (!info.ok() && info.error().code != ErrorCode::kNotFound) return info.error();
  if (info.ok()) {
    std::vector<StateFiles> states = info->leftovers;
    if (info->state) states.push_back(*info->state);
    for (const StateFiles& state : states) {
      for (const std::string& whole : FilesIn(folder, state).all()) {
        for (const std::string& path : {whole, offload::UnfinishedCopy(whole)}) {
          std::error_code ignored;
          if (!fs::exists(fs::symlink_status(path, ignored))) continue;
          PENSTOCK_ASSIGN(auto file, offload::RemovableState::Open(path, state.uuid));
          PENSTOCK_TRY(file.Remove());
        }
      }
    }
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

Result<std::string> CopyRun(const Folder& run, const RunInfo& info,
                            const offload::WholeState& state, const std::string& path,
                            const Notify& notify) {
  PENSTOCK_ASSIGN(const std::string target, CanonicalPath(path));
  const auto [parent, name] = SplitPath(target);
  PENSTOCK_TRY(MakeFolders(parent).status());
  PENSTOCK_ASSIGN(const Folder around, Folder::Open(parent));
  PENSTOCK_ASSIGN(const FolderEntry taken, around.Look(name));
  if (taken.kind != FolderEntry::Kind::kNone) {
    return MakeError(ErrorCode::kInvalidArgument, "{} is there already; name another snapshot",
                     target);
  }
  const std::string unfinished = fmt::format(".{}.unfinished", name);
  PENSTOCK_TRY(RemoveLeft(around, unfinished, target));
  RunInfo own = info;
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  own.run_uuid = offload::ToString(uuid);
  own.place = target;
  own.temporary = false;
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
