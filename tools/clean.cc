#include "tools/clean.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/files.h"
#include "offload/caller_file.h"
#include "run/leftovers.h"
#include "run/moved_run.h"
#include "run/rank_reports.h"
#include "run/run_copy.h"
#include "run/run_folder.h"
#include "run/snapshot.h"
#include "run/snapshot_request.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

using Held = std::shared_ptr<const Folder>;

Result<Held> Hold(Result<Folder> folder) {
  PENSTOCK_TRY(folder.status());
  return Held(std::make_shared<Folder>(*std::move(folder)));
}

bool IsEmpty(const Folder& folder) {
  const Result<std::vector<std::string>> names = folder.List();
  return names.ok() && names->empty();
}

/// Whether the folder of a snapshot whose run.json cannot be used is nevertheless not the run's:
/// that file is of another kind, or does not have this UUID.
bool IsForeign(const Folder& folder, const std::string& run_uuid, const Error& error) {
  if (error.code == ErrorCode::kPermission) return true;
  if (error.code != ErrorCode::kCorruption && error.code != ErrorCode::kInvalidArgument) {
    return false;
  }
  const Result<std::string> text = ReadTextFile(folder, kInfoName, kMaxOwnText);
  return !text.ok() || text->find(run_uuid) == std::string::npos;
}

/// Makes a plan, place by place.
class Planner {
 public:
  explicit Planner(CleanPlan& plan) : plan_(plan) {}

  Status FindAll();

 private:
  Status FindStates(const StateFiles& files);
  /// What names the run beside the state.
  Status FindOwnerOf(const StateFiles& files);
  /// The folders in which a run has its states that the package began in version 1, and what names
  /// the run there.
  Status FindOlderFoldersOf(const StateFiles& files);
  void AddOwner(OwnerFiles owner);
  /// Whether a file lies in RUN, or in a folder of it.
  bool IsWithin(const std::string& path) const;
  /// `note`: what is said of the file if it is not there.
  Status FindState(const std::string& path, const std::string& uuid, const std::string& note);
  /// The callers' files of a path 0 that somebody removed alone.
  Status FindCallersOf(const std::string& path);
  void AddFiles(const Held& in, const std::vector<FoundFile>& files);
  Status AddFilesOfRun(const Held& run);
  Status FindSnapshot(const Held& snapshots, const std::string& name);
  Status FindUnfinished(const Held& snapshots, const std::string& name);
  Status FindSnapshots();
  Status FindCopy(const std::string& path);
  Status FindReports();
  Status FindReplay();
  Status FindKept();

  CleanPlan& plan_;
  std::string run_uuid_;
  bool is_copy_ = false;  ///< only what lies in RUN is the run's
  /// Where RUN was trained last, if nothing shows that it is no copy of the run there.
  std::optional<std::string> elsewhere_;
  std::vector<std::string> runs_;  ///< the paths that RUN has and had
  std::set<FileId> found_;         ///< files of the plan: run.json may name one twice
  std::vector<Held> folders_;      ///< folders that the plan empties
};

Status Planner::FindStates(const StateFiles& files) {
  for (size_t rank = 0; rank < files.ranks.size(); ++rank) {
    for (const std::string& path : files.ranks[rank].paths) {
      PENSTOCK_TRY(FindState(path, files.uuid, RankNote(files, rank)));
    }
  }
  return {};
}

Status Planner::FindOwnerOf(const StateFiles& files) {
  if (is_copy_) return {};
  PENSTOCK_ASSIGN(std::optional<OwnerFiles> owner, FindOwner(files, runs_));
  if (owner) AddOwner(*std::move(owner));
  return {};
}

Status Planner::FindOlderFoldersOf(const StateFiles& files) {
  if (is_copy_) return {};
  PENSTOCK_ASSIGN(std::vector<OwnerFiles> folders, FindOlderFolders(files, runs_));
  for (OwnerFiles& owner : folders) {
    const auto [parent, name] = SplitPath(owner.folder.path());
    PENSTOCK_ASSIGN(const FileId id, IdOf(owner.folder.fd(), owner.folder.path()));
    if (!found_.insert(id).second) continue;  // it has another state of the run, too
    AddOwner(std::move(owner));
    PENSTOCK_ASSIGN(const Held around, Hold(Folder::Open(parent)));
    plan_.items.push_back({around, name});
  }
  return {};
}

void Planner::AddOwner(OwnerFiles owner) {
  const Held folder = std::make_shared<Folder>(std::move(owner.folder));
  for (const FoundFile& file : owner.files) {
    if (found_.insert(file.id).second) plan_.items.push_back({folder, file.name, file});
  }
}

bool Planner::IsWithin(const std::string& path) const {
  return fs::path(path).lexically_normal().string().starts_with(plan_.run->path() + "/");
}

Status Planner::FindState(const std::string& path, const std::string& uuid,
                          const std::string& note) {
  if (is_copy_ && !IsWithin(path)) {
    plan_.shared.push_back(path);
    return {};
  }
  const Result<FileId> id = IdAt(path);
  if (id.ok() && found_.contains(*id)) return {};
  Result<offload::RemovableState> state = offload::RemovableState::Open(path, uuid);
  if (state.ok() && elsewhere_ && !IsWithin(path)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} was last trained at {}, and {} may be another run's: if it was moved, "
                     "resume it once where it is, or move it back; if it is a copy, resume the "
                     "original once, which keeps that file; then clean it",
                     plan_.run->path(), *elsewhere_, path);
  }
  if (state.ok()) {
    found_.insert(state->id());
    for (const FoundFile& file : state->caller_files()) found_.insert(file.id);
    plan_.states.push_back(std::move(state).value());
    return {};
  }
  if (state.error().code != ErrorCode::kNotFound) return state.error();
  const std::string missing = path + note;
  if (std::ranges::find(plan_.missing_states, missing) == plan_.missing_states.end()) {
    plan_.missing_states.push_back(missing);
  }
  return elsewhere_ && !IsWithin(path) ? Status() : FindCallersOf(path);
}

Status Planner::FindCallersOf(const std::string& path) {
  const Result<Held> folder = Hold(Folder::Open(SplitPath(path).first));
  if (!folder.ok()) return {};  // its drive is not there
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, offload::FindCallerFiles(**folder, path));
  for (const FoundFile& file : files) {
    if (found_.insert(file.id).second) plan_.items.push_back({*folder, file.name, file});
  }
  return {};
}

void Planner::AddFiles(const Held& in, const std::vector<FoundFile>& files) {
  for (const FoundFile& file : files) plan_.items.push_back({in, file.name, file});
}

Status Planner::AddFilesOfRun(const Held& run) {
  folders_.push_back(run);
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, FilesOfRun(*run));
  AddFiles(run, files);
  return {};
}

/// A folder without run.json holds run.lock at most if a removal was cut off; else it is not the
/// run's.
Status Planner::FindSnapshot(const Held& snapshots, const std::string& name) {
  const Result<Held> opened = Hold(snapshots->OpenFolder(name));
  if (!opened.ok() && opened.error().code == ErrorCode::kPermission) return {};
  PENSTOCK_TRY(opened.status());
  const Held& folder = *opened;
  const Result<RunInfo> info = ReadRunInfo(*folder);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) {
    PENSTOCK_ASSIGN(const bool left, EndedAtItsBeginning(*folder));
    if (!left) return {};
    PENSTOCK_TRY(AddFilesOfRun(folder));
    plan_.items.push_back({snapshots, name});
    return {};
  }
  if (!info.ok() && IsForeign(*folder, run_uuid_, info.error())) return {};
  PENSTOCK_TRY(info.status());
  if (info->run_uuid != run_uuid_) return {};
  if (info->state) PENSTOCK_TRY(FindStates(*info->state));
  PENSTOCK_TRY(AddFilesOfRun(folder));
  plan_.items.push_back({snapshots, name});
  return {};
}

Status Planner::FindUnfinished(const Held& snapshots, const std::string& name) {
  PENSTOCK_ASSIGN(const Held folder, Hold(snapshots->OpenFolder(name)));
  PENSTOCK_ASSIGN(const StateFiles files, FilesOfUnfinished(*folder));
  PENSTOCK_TRY(FindStates(files));
  PENSTOCK_TRY(AddFilesOfRun(folder));
  plan_.items.push_back({snapshots, name});
  return {};
}

/// Snapshots, and, with names that begin with '.', requests, answers and unfinished snapshots.
Status Planner::FindSnapshots() {
  Result<Held> opened = Hold(OpenSnapshotsFolder(*plan_.run));
  if (!opened.ok()) return {};  // there is none, or something else is there, which is kept
  const Held snapshots = *std::move(opened);
  folders_.push_back(snapshots);
  PENSTOCK_ASSIGN(const std::vector<std::string> names, snapshots->List());
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN(const FolderEntry entry, snapshots->Look(name));
    const bool is_folder = entry.kind == FolderEntry::Kind::kFolder;
    if (is_folder && !name.starts_with('.')) PENSTOCK_TRY(FindSnapshot(snapshots, name));
  }
  for (const std::string& name : UnfinishedSnapshots(*snapshots, run_uuid_)) {
    PENSTOCK_TRY(FindUnfinished(snapshots, name));
  }
  PENSTOCK_ASSIGN(const std::vector<FoundFile> requests, RequestFiles(*snapshots, run_uuid_));
  AddFiles(snapshots, requests);
  plan_.items.push_back({plan_.run, SplitPath(snapshots->path()).second});
  return {};
}

/// What is left of a snapshot to a path. Something else of its name is kept.
Status Planner::FindCopy(const std::string& path) {
  Result<std::optional<LeftCopy>> left = FindLeftCopy(path);
  if (!left.ok() || !*left) return {};
  PENSTOCK_TRY(FindStates((*left)->state));
  const Held folder = std::make_shared<Folder>(std::move((*left)->folder));
  PENSTOCK_TRY(AddFilesOfRun(folder));
  const Held around = std::make_shared<Folder>(std::move((*left)->around));
  plan_.items.push_back({around, SplitPath(folder->path()).second});
  return {};
}

/// What ranks have said of a failure.
Status Planner::FindReports() {
  Result<Held> opened = Hold(OpenReportsFolder(*plan_.run));
  if (!opened.ok()) return {};  // as with snapshots
  const Held reports = *std::move(opened);
  folders_.push_back(reports);
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, ReportFiles(*reports));
  AddFiles(reports, files);
  plan_.items.push_back({plan_.run, SplitPath(reports->path()).second});
  return {};
}

/// No replay runs: it would have the run's lock. Something else of that name is kept.
Status Planner::FindReplay() {
  const std::string name = ReplayScratchName(run_uuid_);
  PENSTOCK_ASSIGN(const FolderEntry entry, plan_.run->Look(name));
  if (entry.kind != FolderEntry::Kind::kFolder) return {};
  PENSTOCK_ASSIGN(plan_.replay, FindLeftScratch(*plan_.run, name));
  return {};
}

/// In RUN and in the folders of its snapshots and reports.
Status Planner::FindKept() {
  std::set<std::string> going;
  for (const offload::RemovableState& state : plan_.states) {
    going.insert(state.path());
    for (const FoundFile& file : state.caller_files()) going.insert(state.PathBeside(file));
  }
  for (const CleanPlan::Item& item : plan_.items) going.insert(item.path());
  if (plan_.replay) going.insert(plan_.replay->folder.path());
  for (const Held& folder : folders_) {
    PENSTOCK_ASSIGN(const std::vector<std::string> names, folder->List());
    for (const std::string& name : names) {
      const std::string path = folder->PathOf(name);
      if (!going.contains(path)) plan_.kept.push_back(path);
    }
  }
  std::ranges::sort(plan_.kept);
  return {};
}

Status Planner::FindAll() {
  PENSTOCK_ASSIGN(const bool not_begun, EndedAtItsBeginning(*plan_.run));
  if (not_begun) return AddFilesOfRun(plan_.run);
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(*plan_.run));
  run_uuid_ = info.run_uuid;
  is_copy_ = IsCopy(*plan_.run, info);
  if (!is_copy_) elsewhere_ = LastPlaceElsewhere(*plan_.run, info);
  runs_ = {plan_.run->path(), info.place};
  std::vector<StateFiles> states = info.leftovers;
  if (info.state) states.insert(states.begin(), *info.state);
  for (const StateFiles& state : states) {
    PENSTOCK_TRY(FindStates(state));
    PENSTOCK_TRY(FindOwnerOf(state));
    if (info.kind != RunKind::kTrain) PENSTOCK_TRY(FindOlderFoldersOf(state));
  }
  if (!run_uuid_.empty()) {  // else it is an older run of the package, which has nothing of these
    PENSTOCK_TRY(FindSnapshots());
    if (info.copying && !is_copy_) PENSTOCK_TRY(FindCopy(*info.copying));
    PENSTOCK_TRY(FindReports());
    PENSTOCK_TRY(FindReplay());
  }
  PENSTOCK_TRY(AddFilesOfRun(plan_.run));
  return FindKept();
}

/// A folder that holds something else stays, and so do those around it.
Status Remove(const CleanPlan::Item& item) {
  if (item.file) return item.in->RemoveFile(item.name, item.file->id);
  PENSTOCK_ASSIGN(const Folder folder, item.in->OpenFolder(item.name));
  return IsEmpty(folder) ? item.in->RemoveFolder(item.name) : Status();
}

}  // namespace

Result<CleanPlan> PlanClean(const std::string& path) {
  // Before anything is said of a lock: is it a run?
  PENSTOCK_ASSIGN(const Held given, Hold(OpenRun(path)));
  PENSTOCK_ASSIGN(const bool not_begun, EndedAtItsBeginning(*given));
  if (!not_begun) PENSTOCK_TRY(ReadRunInfo(*given).status());
  PENSTOCK_ASSIGN(const FolderEntry lock_before, given->Look(kLockName));
  CleanPlan plan;
  PENSTOCK_ASSIGN(plan.lock, RunLock::Take(*given));
  if (lock_before.kind == FolderEntry::Kind::kNone) {
    PENSTOCK_ASSIGN(const FolderEntry made, given->Look(kLockName));
    plan.made_lock = std::make_unique<const MadeLock>(given, made.id);
  }
  std::error_code error;
  const std::string canonical = fs::canonical(path, error).string();
  if (error) return ErrnoError(error.value(), "looking at " + path);
  const auto [parent, name] = SplitPath(canonical);
  PENSTOCK_ASSIGN(const Held around, Hold(Folder::Open(parent)));
  PENSTOCK_ASSIGN(plan.run, Hold(around->OpenFolder(name)));
  PENSTOCK_ASSIGN(const bool same, given->IsAt(canonical));
  if (!same) {
    return MakeError(ErrorCode::kUnavailable, "{} was replaced by another folder meanwhile", path);
  }
  PENSTOCK_TRY(Planner(plan).FindAll());
  plan.items.push_back({around, name});
  return plan;
}

Status Clean(CleanPlan& plan) {
  for (offload::RemovableState& state : plan.states) PENSTOCK_TRY(state.Remove());
  if (plan.replay) PENSTOCK_TRY(plan.replay->Remove());
  for (const CleanPlan::Item& item : plan.items) PENSTOCK_TRY(Remove(item));
  const CleanPlan::Item& run = plan.items.back();
  PENSTOCK_ASSIGN(FolderEntry left, run.in->Look(run.name));
  if (left.kind != FolderEntry::Kind::kNone) {
    // On NFS the file of the lock is in RUN until the lock ends.
    plan.lock.Release();
    PENSTOCK_TRY(Remove(run));
    PENSTOCK_ASSIGN(left, run.in->Look(run.name));
  }
  return left.kind == FolderEntry::Kind::kNone ? run.in->Sync() : plan.run->Sync();
}

std::string ToText(const CleanPlan& plan, bool removed) {
  std::string text;
  Bytes total;
  const auto line = [&](const std::string& path, Bytes size) {
    text += fmt::format("{:>12}  {}\n", ToString(size), path);
    total += size;
  };
  for (const offload::RemovableState& state : plan.states) {
    line(state.path(), state.size());
    for (const FoundFile& file : state.caller_files()) line(state.PathBeside(file), file.size);
  }
  if (plan.replay) line(plan.replay->folder.path(), plan.replay->Size());
  for (const CleanPlan::Item& item : plan.items) {
    if (item.file) line(item.path(), item.file->size);
  }
  for (const std::string& path : plan.missing_states) {
    text += fmt::format("{:>12}  {}\n", "not there", path);
  }
  const char* const stays = removed ? "kept" : "stays";
  for (const std::string& path : plan.shared) {
    text += fmt::format("{:>12}  {}, which is the original's: this run is a copy\n", stays, path);
  }
  for (const std::string& path : plan.kept) {
    text += fmt::format("{:>12}  {}, which is not the run's\n", stays, path);
  }
  if (!plan.kept.empty())
    text += fmt::format("{:>12}  {}, which contains these\n", stays, plan.run->path());
  return text + fmt::format(fmt::runtime(removed ? "removed {}\n"
                                                 : "would remove {}; nothing is removed without "
                                                   "--yes\n"),
                            ToString(total));
}

}  // namespace penstock::train
