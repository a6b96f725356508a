#include "run/run_copy.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/files.h"
#include "offload/state_copy.h"
#include "offload/state_names.h"
#include "offload/state_removal.h"
#include "offload/uuid.h"
#include "run/commit_rows.h"
#include "run/run_folder.h"
#include "run/run_lock.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Errors: kInvalidArgument if a folder is no unfinished copy to `path`.
Status CheckIsLeft(const Folder& left, const std::string& path) {
  const Result<RunInfo> info = ReadRunInfo(left);
  PENSTOCK_ASSIGN(const bool begun, EndedAtItsBeginning(left));
  if (begun || (info.ok() && info->place == path && LiesIn(NewestFiles(*info), left.path())))
    return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} is there and no unfinished copy of a run; take another name for the "
                   "snapshot, or remove that folder",
                   left.path());
}

CopyPlace PlaceAt(const Folder& around, const std::string& path) {
  return {.around = around,
          .name = SplitPath(path).second,
          .check = [path](const Folder& left) { return CheckIsLeft(left, path); },
          .locks = true};
}

/// An error leaves the unfinished folder, and the files that it names.
Status Fill(const CommitOfRun& commit, const Folder& folder, RunInfo own, const StateFiles& files,
            const std::function<bool()>& stop_requested, const Notify& notify) {
  own.temporary = false;  // it stays when its run is removed
  own.rows_from.reset();
  own.made_files.clear();
  own.copying.reset();
  own.state.reset();
  own.leftovers = {files};
  PENSTOCK_TRY(WriteRunInfo(folder, own));
  PENSTOCK_TRY(offload::CopyState(commit.state, files.paths(), stop_requested));
  own.state = files;
  own.leftovers.clear();
  PENSTOCK_TRY(WriteRunInfo(folder, own));
  return CopyCommittedRows(commit.run, commit.info, commit.state, folder, notify);
}

/// Gives a copy its name. It is taken back if that is not durable.
Status Finish(const CopyPlace& place) {
  const std::string unfinished = UnfinishedName(place.name);
  PENSTOCK_TRY(place.around.Rename(unfinished, place.name));
  Status synced = place.around.Sync();
  if (!synced.ok()) static_cast<void>(place.around.Rename(place.name, unfinished));
  return synced;
}

}  // namespace

std::string UnfinishedName(const std::string& name) {
  return fmt::format(".{}{}", name, kUnfinished);
}

Status MakeCopy(const CommitOfRun& commit, const CopyPlace& place, RunInfo own,
                const std::function<Result<StateFiles>(const Folder& unfinished)>& files,
                const std::function<bool()>& stop_requested, const Notify& notify) {
  PENSTOCK_TRY(RemoveUnfinished(place));
  const auto make = [&]() -> Status {
    PENSTOCK_ASSIGN(const Folder folder, place.around.MakeFolder(UnfinishedName(place.name)));
    RunLock lock;
    if (place.locks) {
      PENSTOCK_ASSIGN(lock, RunLock::TryTake(folder));
    }
    PENSTOCK_ASSIGN(const StateFiles targets, files(folder));
    PENSTOCK_TRY(Fill(commit, folder, std::move(own), targets, stop_requested, notify));
    return Finish(place);
  };
  Status made = make();
  if (!made.ok()) RemoveUnfinishedOrSay(place, notify);
  return made;
}

Status RemoveUnfinished(const CopyPlace& place) {
  const std::string name = UnfinishedName(place.name);
  PENSTOCK_ASSIGN(const FolderEntry entry, place.around.Look(name));
  if (entry.kind == FolderEntry::Kind::kNone) return {};
  // An empty one, for which no descriptor is needed: that there was none may be why it is empty.
  if (place.around.RemoveFolder(name).ok()) return {};
  PENSTOCK_ASSIGN(const Folder left, place.around.OpenFolder(name));
  PENSTOCK_TRY(place.check(left));  // before a lock is made in it
  RunLock lock;
  if (place.locks) {
    PENSTOCK_ASSIGN(lock, RunLock::TryTakeAt(place.around, name, left));
    PENSTOCK_TRY(place.check(left));
  }
  PENSTOCK_ASSIGN(const StateFiles state, FilesOfUnfinished(left));
  for (const std::string& path : state.all()) {
    PENSTOCK_ASSIGN(auto file, offload::RemovableState::Open(path, state.uuid));
    PENSTOCK_TRY(file.Remove());
  }
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, FilesOfRun(left));
  for (const FoundFile& file : files) PENSTOCK_TRY(left.RemoveFile(file.name, file.id));
  // The folder last: it says which the files are.
  return lock.RemoveFolder(place.around, name);
}

void RemoveUnfinishedOrSay(const CopyPlace& place, const Notify& notify) {
  const Status removed = RemoveUnfinished(place);
  if (removed.ok()) return;
  notify("an unfinished snapshot is left behind: " + removed.error().message);
}

Result<StateFiles> FilesOfUnfinished(const Folder& folder) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  // The copy was not begun.
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) return StateFiles{};
  PENSTOCK_TRY(info.status());
  StateFiles there = NewestFiles(*info);
  for (RankFiles& rank : there.ranks) {
    std::vector<std::string> paths;
    for (const std::string& whole : rank.paths) {
      for (const std::string& path : {whole, offload::UnfinishedCopy(whole)}) {
        std::error_code ignored;
        const bool drive_is_there = fs::exists(fs::path(path).parent_path(), ignored);
        if (drive_is_there && !fs::exists(fs::symlink_status(path, ignored))) continue;
        paths.push_back(path);
      }
    }
    rank.paths = std::move(paths);
  }
  return there;
}

Status CopyRun(const CommitOfRun& commit, const std::string& path, const Notify& notify) {
  const auto [parent, name] = SplitPath(path);
  const Error taken =
      MakeError(ErrorCode::kInvalidArgument, "{} is there already; name another snapshot", path);
  if (name.empty()) return taken;
  PENSTOCK_TRY(MakeFolders(parent).status());
  PENSTOCK_ASSIGN(const Folder around, Folder::Open(parent));
  PENSTOCK_ASSIGN(const FolderEntry there, around.Look(name));
  if (there.kind != FolderEntry::Kind::kNone) return taken;
  RunInfo own = commit.info;
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  own.run_uuid = offload::ToString(uuid);
  own.place = path;
  const auto in_it = [&](const Folder& folder) {
    StateFiles files = *commit.info.state;
    for (RankFiles& rank : files.ranks) {
      for (std::string& file : rank.paths) file = folder.PathOf(SplitPath(file).second);
    }
    return Result(std::move(files));
  };
  return MakeCopy(
      commit, PlaceAt(around, path), std::move(own), in_it, [] { return false; }, notify);
}

Result<std::optional<LeftCopy>> FindLeftCopy(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  Result<Folder> around = Folder::Open(parent);
  if (!around.ok() && around.error().code == ErrorCode::kNotFound) return std::optional<LeftCopy>();
  PENSTOCK_TRY(around.status());
  Result<Folder> folder = around->OpenFolder(UnfinishedName(name));
  if (!folder.ok() && folder.error().code == ErrorCode::kNotFound) return std::optional<LeftCopy>();
  PENSTOCK_TRY(folder.status());
  PENSTOCK_TRY(CheckIsLeft(*folder, path));
  PENSTOCK_ASSIGN(StateFiles state, FilesOfUnfinished(*folder));
  return std::optional(LeftCopy{*std::move(around), *std::move(folder), std::move(state)});
}

Status RemoveLeftCopy(const std::string& path) {
  const Result<Folder> around = Folder::Open(SplitPath(path).first);
  if (!around.ok() && around.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(around.status());
  return RemoveUnfinished(PlaceAt(*around, path));
}

}  // namespace penstock::train
