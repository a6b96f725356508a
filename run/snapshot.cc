#include "run/snapshot.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/files.h"
#include "offload/state_names.h"
#include "offload/state_removal.h"
#include "run/automatic_snapshots.h"
#include "run/run_copy.h"
#include "run/snapshot_request.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using offload::WholeState;

constexpr const char* kSnapshots = "snapshots";
/// ".failed": of earlier versions.
constexpr std::array<std::string_view, 4> kOwnSuffixes = {kUnfinished, ".request", ".answer",
                                                          ".failed"};

/// Where the copy of a file goes, for the snapshot `name`.
Result<std::string> TargetOf(const Folder& run, const std::string& path, const std::string& name,
                             const Folder& unfinished) {
  const fs::path file = path;
  PENSTOCK_ASSIGN(const bool in_run, run.IsAt(SplitPath(path).first));
  std::error_code ignored;
  if (in_run) return (fs::absolute(unfinished.path(), ignored) / file.filename()).string();
  return (file.parent_path() / fmt::format("{}.snapshot-{}.state", file.stem().string(), name))
      .string();
}

/// Called before they are noted as the snapshot's: a file that is there may have been moved away.
Status CheckFree(const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    for (const std::string& path : {target, offload::UnfinishedCopy(target)}) {
      std::error_code ignored;
      if (!fs::exists(fs::symlink_status(path, ignored))) continue;
      return MakeError(ErrorCode::kInvalidArgument,
                       "there is {} already, of a snapshot whose folder is not in RUN any more; "
                       "take another name, or remove that file if you do not need it",
                       path);
    }
  }
  return {};
}

/// The files of the snapshot `name` of a state, none of which is there.
Result<StateFiles> TargetFiles(const Folder& run, const StateFiles& state, const std::string& name,
                               const Folder& unfinished) {
  StateFiles targets = state;
  for (RankFiles& rank : targets.ranks) {
    for (std::string& path : rank.paths) {
      PENSTOCK_ASSIGN(path, TargetOf(run, path, name, unfinished));
    }
  }
  PENSTOCK_TRY(CheckFree(targets.all()));
  return targets;
}

/// Whether the writing of a run.json was cut off, of the run with this UUID or before it was there.
bool IsBegunInfo(const Folder& folder, const std::string& name, const std::string& run_uuid) {
  if (name == kInfoName || WithoutTemporary(name) != kInfoName) return false;
  const Result<std::string> text = ReadTextFile(folder, name, kMaxOwnText);
  return text.ok() && (IsBlank(*text) || text->find(run_uuid) != std::string::npos);
}

bool IsUnfinishedOf(const Folder& folder, const std::string& run_uuid) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  if (info.ok()) return info->run_uuid == run_uuid;
  if (info.error().code != ErrorCode::kNotFound) return false;
  // It was cut off before its run.json had that name.
  const Result<std::vector<std::string>> names = folder.List();
  return names.ok() && std::ranges::all_of(*names, [&](const std::string& name) {
           return name == kLockName || IsBegunInfo(folder, name, run_uuid);
         });
}

CopyPlace PlaceOf(const Folder& snapshots, const std::string& name, const std::string& run_uuid) {
  return {.around = snapshots, .name = name, .check = [run_uuid](const Folder& folder) -> Status {
            if (IsUnfinishedOf(folder, run_uuid)) return {};
            return MakeError(ErrorCode::kInvalidArgument,
                             "{} is there and was not made by this run; take another name for the "
                             "snapshot, or remove that folder",
                             folder.path());
          }};
}

}  // namespace

Result<Folder> OpenSnapshotsFolder(const Folder& run) { return run.OpenFolder(kSnapshots); }

Result<Folder> MakeSnapshotsFolder(const Folder& run) {
  PENSTOCK_ASSIGN(const FolderEntry entry, run.Look(kSnapshots));
  return entry.kind == FolderEntry::Kind::kNone ? run.MakeFolder(kSnapshots)
                                                : run.OpenFolder(kSnapshots);
}

Result<Folder> OpenSnapshot(const Folder& run, const std::string& name) {
  PENSTOCK_ASSIGN(const Folder snapshots, OpenSnapshotsFolder(run));
  return snapshots.OpenFolder(name);
}

Status CheckSnapshotName(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= 64 && name.front() != '.' &&
      std::ranges::all_of(name, fits)) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"{}\" is no name for a snapshot; take up to 64 letters, digits, '.', '_' and "
                   "'-', not beginning with '.'",
                   name);
}

Status CheckNewSnapshotName(const std::string& name) {
  PENSTOCK_TRY(CheckSnapshotName(name));
  if (IsAutomaticSnapshotName(name)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "\"{}\" is no name for a snapshot: runs give such names to their automatic "
                     "snapshots; take another name",
                     name);
  }
  const bool ends = std::ranges::any_of(
      kOwnSuffixes, [&name](std::string_view suffix) { return name.ends_with(suffix); });
  if (!ends && WithoutTemporary(name) == name) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"{}\" is no name for a snapshot: files beside snapshots end like that "
                   "({}, .tmp-1); take another name",
                   name, fmt::join(kOwnSuffixes, ", "));
}

Status CheckSnapshotNotTaken(const Folder& run, const std::string& name) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok() && snapshots.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(snapshots.status());
  PENSTOCK_ASSIGN(const FolderEntry entry, snapshots->Look(name));
  if (entry.kind == FolderEntry::Kind::kNone) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "there is {} already; take another name, or remove it with penstock clean {}",
                   snapshots->PathOf(name), snapshots->PathOf(name));
}

std::optional<std::string> HiddenSnapshotName(const std::string& file, std::string_view suffix) {
  if (!file.starts_with('.') || !file.ends_with(suffix) || file.size() <= 1 + suffix.size()) {
    return {};
  }
  const std::string name = file.substr(1, file.size() - 1 - suffix.size());
  return CheckSnapshotName(name).ok() ? std::optional(name) : std::nullopt;
}

std::vector<std::string> Snapshots(const Folder& run) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok()) return {};
  const Result<std::vector<std::string>> names = snapshots->List();
  if (!names.ok()) return {};
  std::vector<std::string> there;
  for (const std::string& name : *names) {
    if (!CheckSnapshotName(name).ok()) continue;
    const Result<Folder> folder = snapshots->OpenFolder(name);
    if (folder.ok() && folder->OpenFile(kInfoName, O_RDONLY).ok()) there.push_back(name);
  }
  return there;
}

std::optional<std::string> RunOfSnapshot(const Folder& folder) {
  std::error_code error;
  const fs::path all = fs::canonical(folder.path(), error).parent_path();
  const std::string run = all.parent_path().string();
  if (error || all.filename() != kSnapshots || !ReadRunInfo(run).ok()) return {};
  return run;
}

std::vector<std::string> UnfinishedSnapshots(const Folder& snapshots, const std::string& run_uuid) {
  if (run_uuid.empty()) return {};  // of an older run of the package, which has none there
  Result<std::vector<std::string>> names = snapshots.List();
  if (!names.ok()) return {};
  std::erase_if(*names, [&](const std::string& name) {
    if (!HiddenSnapshotName(name, kUnfinished)) return true;
    const Result<Folder> folder = snapshots.OpenFolder(name);
    return !folder.ok() || !IsUnfinishedOf(*folder, run_uuid);
  });
  return *std::move(names);
}

void RemoveUnfinishedSnapshots(const Folder& run, const std::string& run_uuid,
                               const Notify& notify) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok()) return;
  for (const std::string& unfinished : UnfinishedSnapshots(*snapshots, run_uuid)) {
    const std::string name = *HiddenSnapshotName(unfinished, kUnfinished);
    RemoveUnfinishedOrSay(PlaceOf(*snapshots, name, run_uuid), notify);
  }
}

Status TakeSnapshot(const Folder& run, const RunInfo& info, const WholeState& state,
                    const std::string& name, const std::function<bool()>& stop_requested,
                    const Notify& notify) {
  PENSTOCK_TRY(info.automatic ? CheckSnapshotName(name) : CheckNewSnapshotName(name));
  PENSTOCK_TRY(CheckSnapshotNotTaken(run, name));
  PENSTOCK_ASSIGN(const Folder snapshots, MakeSnapshotsFolder(run));
  RunInfo own = info;
  PENSTOCK_ASSIGN(own.place, CanonicalPath(snapshots.PathOf(name)));
  const auto files = [&](const Folder& unfinished) {
    return TargetFiles(run, *info.state, name, unfinished);
  };
  return MakeCopy({run, info, state}, PlaceOf(snapshots, name, info.run_uuid), std::move(own),
                  files, stop_requested, notify);
}

Status RemoveSnapshot(const Folder& run, const std::string& name, const std::string& run_uuid) {
  PENSTOCK_ASSIGN(const Folder snapshots, OpenSnapshotsFolder(run));
  {
    PENSTOCK_ASSIGN(const Folder folder, snapshots.OpenFolder(name));
    PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(folder));
    if (info.run_uuid != run_uuid) {
      return MakeError(ErrorCode::kInvalidArgument, "{} is not a snapshot of this run",
                       folder.path());
    }
    PENSTOCK_ASSIGN(const StateFiles state, CommittedFiles(info, folder.path()));
    for (const std::string& path : state.all()) {
      const auto file = offload::RemovableState::Open(path, state.uuid);
      if (!file.ok() && file.error().code != ErrorCode::kNotFound) return file.error();
    }
  }
  // From here on a kill leaves what the next resume removes.
  PENSTOCK_TRY(snapshots.Rename(name, UnfinishedName(name)));
  return RemoveUnfinished(PlaceOf(snapshots, name, run_uuid));
}

}  // namespace penstock::train
