#include "run/held_run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "base/files.h"
#include "base/mutex.h"
#include "base/of_process.h"
#include "offload/state_names.h"
#include "offload/uuid.h"
#include "run/leftovers.h"
#include "run/made_files.h"
#include "run/moved_run.h"
#include "run/run_copy.h"
#include "run/run_folder.h"
#include "run/snapshot.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryName = "penstock-";
constexpr size_t kTemporaryDigits = 16;

Result<std::string> NewUuid() {
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  return offload::ToString(uuid);
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Whether the newest commit of the run at `run` is in a folder, or in one that is made in it.
bool HasCommitIn(const std::string& run, const std::string& folder) {
  const Result<RunInfo> info = ReadRunInfo(run);
  return info.ok() && info->state &&
         std::ranges::any_of(info->state->all(), [&](const std::string& file) {
           return file.starts_with(folder + "/");
         });
}

/// `run`: the path of the run for which they are, if it has one.
Result<std::vector<std::string>> FoldersOnDrives(const std::vector<std::string>& paths,
                                                 const std::optional<std::string>& run) {
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    PENSTOCK_ASSIGN(folders.emplace_back(), CanonicalPath(path));
    std::error_code ignored;
    if (fs::is_directory(folders.back(), ignored)) continue;
    if (run && HasCommitIn(*run, folders.back())) {
      return MakeError(ErrorCode::kNotFound,
                       "nvme_path {} is not there, and the newest commit of {} is in it: mount its "
                       "drive",
                       path, *run);
    }
    return MakeError(ErrorCode::kNotFound, "nvme_path {} is no folder; make it first", path);
  }
  return folders;
}

/// Errors: kInvalidArgument if `path`, where no run is, has states, which are somebody's.
Status CheckNotForeign(const std::string& path) {
  const std::vector<std::string> states = offload::AllStatesIn(path);
  if (states.empty()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} has {} and no run.json, so it is no run; name another folder", path,
                   SplitPath(states.front()).second);
}

/// Refuses a snapshot, which no training changes.
Status CheckNoSnapshot(const RunInfo& info, const std::string& path) {
  const Result<Folder> folder = Folder::Open(path);
  const std::optional<std::string> run =
      folder.ok() ? RunOfSnapshot(*folder) : std::optional<std::string>();
  if (!run) return {};
  const std::string name = SplitPath(path).second;
  if (info.kind == RunKind::kTrain) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} is a snapshot of {}, a run of penstock train, which resumes from it with "
                     "--resume-from {}; name another folder",
                     path, *run, name);
  }
  return MakeError(
      ErrorCode::kInvalidArgument,
      "{} is a snapshot of {}, and stays as it is; to resume from it, open that run and "
      "load a state_dict whose [\"penstock\"][\"snapshot\"] is this folder",
      path, *run);
}

Status CheckKind(const RunInfo& info, RunKind kind, const std::string& path) {
  if (info.kind == kind) return {};
  if (info.kind == RunKind::kTrain) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} is a run of penstock train, which resumes it with --resume; name another "
                     "folder",
                     path);
  }
  const auto name = [](RunKind of) { return of == RunKind::kModule ? "module" : "optimizer"; };
  return MakeError(ErrorCode::kInvalidArgument,
                   "run {} is of kind {}, and {} was asked for; name another run", path,
                   name(info.kind), name(kind));
}

/// The folders of runs that this process has open. The lock would refuse them as well, but only
/// after a wait, and its message could not say that no other process has to end.
struct OpenFolders {
  Mutex mutex;
  std::set<FileId> ids GUARDED_BY(mutex);
};

OpenFolders& Open() { return OfProcess<OpenFolders>::Get(); }

/// Marks a folder as open until the last copy of what is returned ends; null if it is already.
std::shared_ptr<const FileId> MarkOpen(const FileId& id) {
  {
    MutexLock lock(Open().mutex);
    if (!Open().ids.insert(id).second) return nullptr;
  }
  return {new FileId(id), [process = ::getpid()](const FileId* marked) {
            const std::unique_ptr<const FileId> owned(marked);
            if (process != ::getpid()) return;  // a child may have it open itself
            MutexLock lock(Open().mutex);
            Open().ids.erase(*marked);
          }};
}

/// Folders that were made for a run, innermost first: those that are empty go again if nothing came
/// of it.
class MadeFolders {
 public:
  explicit MadeFolders(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;
  ~MadeFolders() {
    std::error_code ignored;
    for (const std::string& path : paths_) fs::remove(path, ignored);
  }
  bool any() const { return !paths_.empty(); }
  void Keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

/// Whether a folder for states is one of a drive's: the drive's path, or one in it that the package
/// made for a run.
bool IsOn(const std::string& folder, const std::string& drive) {
  if (folder == drive) return true;
  const auto [around, name] = SplitPath(folder);
  return around == drive && name.starts_with(kTemporaryName);
}

/// Removes a folder in which version 1 of the package had one run's states, if it has none left.
void RemoveOlderFolder(const std::string& path) {
  constexpr const char* kName = "run.name";  // of the run, beside them
  const Result<Folder> folder = Folder::Open(path);
  if (!folder.ok()) return;
  const Result<std::vector<std::string>> names = folder->List();
  if (!names.ok() || *names != std::vector<std::string>{kName}) return;
  if (!folder->RemoveFile(kName).ok()) return;
  const auto [around, name] = SplitPath(path);
  const Result<Folder> parent = Folder::Open(around);
  if (parent.ok()) static_cast<void>(parent->RemoveFolder(name));
}

}  // namespace

Result<HeldRun> HeldRun::Open(const RunRequest& request) {
  RunRequest asked = request;
  PENSTOCK_ASSIGN(asked.nvme_paths, FoldersOnDrives(request.nvme_paths, request.folder));
  if (!asked.folder && asked.nvme_paths.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "neither run nor nvme_path is given, so there is no place for the state file; "
                     "give nvme_path=, a folder on a drive, or run=, a folder for this training");
  }
  if (asked.folder) {
    PENSTOCK_ASSIGN(const std::string path, CanonicalPath(*asked.folder));
    return OpenAt(asked, path);
  }
  RemoveAbandoned(asked.nvme_paths.front());
  PENSTOCK_ASSIGN(const std::string uuid, NewUuid());
  return OpenAt(asked, fmt::format("{}/{}{}", asked.nvme_paths.front(), kTemporaryName,
                                   uuid.substr(0, kTemporaryDigits)));
}

Result<HeldRun> HeldRun::OpenAt(const RunRequest& request, const std::string& path) {
  // Before anything is made: a folder that is another's stays as it is.
  const Result<RunInfo> found = ReadRunInfo(path);
  if (found.ok()) {
    PENSTOCK_TRY(CheckNoSnapshot(*found, path));
    PENSTOCK_TRY(CheckKind(*found, request.kind, path));
  } else if (found.error().code != ErrorCode::kNotFound) {
    return found.error();
  } else {
    PENSTOCK_TRY(CheckNotForeign(path));
    PENSTOCK_TRY(CheckNoOrphan(path, request.nvme_paths));
  }
  PENSTOCK_ASSIGN(std::vector<std::string> folders, MakeFolders(path));
  MadeFolders made(std::move(folders));
  PENSTOCK_ASSIGN(Folder folder, Folder::Open(path));
  PENSTOCK_ASSIGN(const FileId id, IdOf(folder.fd(), path));
  std::shared_ptr<const FileId> mark = MarkOpen(id);
  if (mark == nullptr) {
    return MakeError(ErrorCode::kUnavailable,
                     "run {} is open in this process already; close it there, or name another "
                     "run",
                     path);
  }
  Result<RunLock> lock = RunLock::Take(folder);
  if (!lock.ok() && lock.error().code == ErrorCode::kUnavailable) {
    return MakeError(ErrorCode::kUnavailable,
                     "run {} is in use by another process; end that process, or name another run",
                     path);
  }
  PENSTOCK_TRY(lock.status());
  HeldRun run(std::move(folder), *std::move(lock));
  run.mark_ = std::move(mark);
  run.made_ = made.any();
  Result<RunInfo> info = ReadRunInfo(run.folder_);
  if (!info.ok() && info.error().code != ErrorCode::kNotFound) {
    if (made.any()) static_cast<void>(run.folder_.RemoveFile(kLockName));
    return info.error();
  }
  const bool begins = !info.ok();
  Status opened = begins ? run.Begin(request) : run.Resume(request, *std::move(info));
  if (!opened.ok()) {
    if (begins) run.RemoveBegun();
    return opened.error();
  }
  made.Keep();
  run.state_folders_ = request.nvme_paths;
  if (run.state_folders_.empty()) run.state_folders_ = {path};
  if (run.info_.temporary) run.state_folders_.front() = path;
  return run;
}

Status HeldRun::Begin(const RunRequest& request) {
  RunInfo info;
  info.kind = request.kind;
  info.program = request.program;
  PENSTOCK_ASSIGN(info.run_uuid, NewUuid());
  info.place = path();
  places_ = {path()};
  info.temporary = !request.folder;
  return Write(std::move(info));
}

Status HeldRun::Resume(const RunRequest& request, RunInfo info) {
  PENSTOCK_TRY(CheckKind(info, request.kind, path()));
  PENSTOCK_TRY(TakeUnnamedCommit(&info));
  if (!info.state) PENSTOCK_TRY(CheckNoOrphan(path(), request.nvme_paths, info.leftovers));
  PENSTOCK_ASSIGN(const std::string uuid, NewUuid());
  places_ = {info.place, path()};
  const std::optional<std::string> original = OriginalOf(folder_, info);
  if (original) BecomeOwn(folder_, uuid, &info);
  // The curves of a copy are the original's.
  if (original) std::erase_if(info.made_files, [](const auto& file) { return file[0] == '/'; });
  if (info.state) info.made_files.clear();
  if (info.run_uuid.empty()) info.run_uuid = uuid;
  // Files in its folder were copied with it.
  is_copy_ = original && !(info.state && LiesIn(*info.state, path()));
  if (is_copy_ && info.state) AddNotice(CopyNotice(folder_, *original));
  if (!is_copy_) info.place = path();
  info.format = RunFormat::kCurrent;
  PENSTOCK_TRY(Write(std::move(info)));
  // If the run was moved, the file beside its state names the place where it was. Nothing is put
  // into a folder on which a drive is to be mounted.
  if (info_.state && !is_copy_ && StateIsThere()) NoteOwnerOf(*info_.state);
  RemoveUnfinishedSnapshots(folder_, info_.run_uuid,
                            [this](const std::string& notice) { AddNotice(notice); });
  RemoveUnfinishedCopy();
  PENSTOCK_TRY(RemoveMadeFiles());
  return RemoveLeftovers();
}

void HeldRun::NoteCopying(const std::optional<std::string>& path) {
  if (!IsWhole() || unsure_ || info_.copying == path) return;
  RunInfo info = info_;
  info.copying = path;
  static_cast<void>(Write(std::move(info)));
}

void HeldRun::RemoveUnfinishedCopy() {
  if (!info_.copying) return;
  const Status removed = RemoveLeftCopy(*info_.copying);
  if (removed.ok()) return NoteCopying(std::nullopt);
  AddNotice("an unfinished snapshot is left behind: " + removed.error().message);
}

void HeldRun::NoteLost(const StateFiles& state) const {
  NoteOwner(state, folder_, [](const std::string& /*notice*/) {});
}

void HeldRun::NoteOwnerOf(const StateFiles& state) {
  NoteOwner(state, folder_, [this](const std::string& notice) { AddNotice(notice); });
}

std::optional<std::vector<std::string>> HeldRun::OwnFolders() const {
  if (!info_.state || is_copy_ || info_.state->ranks.size() != 1) return std::nullopt;
  const std::vector<std::string>& paths = info_.state->ranks.front().paths;
  if (paths.size() != state_folders_.size()) return std::nullopt;
  if (std::ranges::any_of(paths, HasOtherName)) return std::nullopt;
  std::vector<std::string> folders;
  for (size_t i = 0; i < paths.size(); ++i) {
    folders.push_back(SplitPath(paths[i]).first);
    if (!IsOn(folders.back(), state_folders_[i]) && folders.back() != path()) return std::nullopt;
  }
  return folders;
}

Status HeldRun::Write(RunInfo info) {
  unsure_ = true;
  ++writes_;
  Status written = WriteRunInfo(folder_, info);
  Result<FolderWatch> watch = Watch();  // a write that failed may have replaced the file
  Status watched = watch.status();
  if (watch.ok()) watch_ = *std::move(watch);
  if (!written.ok()) return written;
  info_ = std::move(info);
  unsure_ = false;
  return watched;
}

Status HeldRun::Announce(const StateFiles& state) {
  RunInfo info = info_;
  info.leftovers.push_back(state);
  announced_.insert(state.uuid);
  return Write(std::move(info));
}

Status HeldRun::NoteCommit(const StateFiles& state, const std::optional<std::string>& rows_from) {
  if (!unsure_ && !unnoted_ && info_.state && info_.state->uuid == state.uuid) return {};
  RunInfo info = info_;
  info.state = state;
  info.made_files.clear();
  if (rows_from) info.rows_from = rows_from;
  TakeLeftovers(info_, folder_, is_copy_, &info);
  info.place = path();
  unnoted_ = state;
  rows_of_unnoted_ = rows_from;
  PENSTOCK_TRY(Write(std::move(info)));
  unnoted_.reset();
  is_copy_ = false;
  NoteOwnerOf(state);
  return RemoveLeftovers();
}

Status HeldRun::NoteRowsTaken() {
  if (!info_.rows_from) return {};
  RunInfo info = info_;
  info.rows_from.reset();
  return Write(std::move(info));
}

Status HeldRun::NoteMadeFiles(const std::vector<std::string>& files) {
  if (info_.state) return {};
  RunInfo info = info_;
  info.made_files.insert(info.made_files.end(), files.begin(), files.end());
  return Write(std::move(info));
}

Status HeldRun::RemoveMadeFiles() {
  if (info_.state || info_.made_files.empty()) return {};
  PENSTOCK_TRY(train::RemoveMadeFiles(folder_, info_.made_files));
  RunInfo info = info_;
  info.made_files.clear();
  return Write(std::move(info));
}

/// Takes back what a beginning that failed has made.
void HeldRun::RemoveBegun() {
  watch_.reset();
  static_cast<void>(folder_.RemoveFile(kInfoName));
  static_cast<void>(folder_.RemoveFile(kLockName));
  const auto [around, name] = SplitPath(path());
  const Result<Folder> parent = Folder::Open(around);
  if (made_ && parent.ok()) static_cast<void>(lock_.RemoveFolder(*parent, name));
}

/// Whether every file of the newest commit is there: else its drive is away, or all is not as it
/// seems.
bool HeldRun::StateIsThere() const {
  return !info_.state || std::ranges::all_of(info_.state->all(), Exists);
}

/// Whether the first commit may be in a state of an earlier process, of which no file is there: it
/// was killed before it made them, or their drive is not mounted. RUN itself is there.
bool HeldRun::MayBeAway(const StateFiles& state) const {
  return !info_.state && !announced_.contains(state.uuid) &&
         SplitPath(state.first()).first != path() && std::ranges::none_of(state.all(), Exists);
}

Status HeldRun::RemoveLeftovers() {
  if (info_.leftovers.empty() || unsure_ || !StateIsThere()) return {};
  RunInfo info = info_;
  const auto remove = [this](const StateFiles& state) {
    if (MayBeAway(state)) {
      notices_.push_back(fmt::format(
          "{} is not there: an earlier process ended before it made that file, or its drive is not "
          "mounted; if so, close this run and mount it, because a commit of this training would "
          "take the place of one in that file",
          state.first()));
      return false;
    }
    const Notify notify = [&](const std::string& notice) {
      notices_.push_back("a state without a commit is left behind: " + notice);
    };
    if (!RemoveState(state, places_, notify)) return false;
    RemoveOlderFolder(SplitPath(state.first()).first);
    return true;
  };
  train::RemoveLeftovers(remove, &info);
  if (info.leftovers.size() == info_.leftovers.size()) return {};
  return Write(std::move(info));
}

bool HeldRun::IsWhole() const { return watch_ && watch_->Check().ok(); }

/// Has run.json name a commit that became durable and was not noted: the write failed, or the end
/// of the training waited for the commit and told nobody.
Status HeldRun::NoteLastCommit() {
  if (unnoted_) return NoteCommit(StateFiles(*unnoted_), rows_of_unnoted_);
  RunInfo info = info_;
  PENSTOCK_TRY(TakeUnnamedCommit(&info));
  return info.state && !info_.state ? NoteCommit(*info.state) : Status();
}

Status HeldRun::Close() {
  Status removed;
  if (IsWhole()) {
    removed = NoteLastCommit();
    if (removed.ok()) removed = RemoveLeftovers();
    if (removed.ok() && !unsure_ && !info_.state && info_.leftovers.empty()) removed = RemoveRun();
  }
  watch_.reset();
  lock_.Release();
  mark_.reset();
  return removed;
}

/// The folder goes if nothing else is in it and it is the run's alone.
Status HeldRun::RemoveRun() {
  watch_.reset();  // its file is removed, and has to be closed for that on NFS
  PENSTOCK_TRY(train::RemoveMadeFiles(folder_, info_.made_files));
  PENSTOCK_TRY(folder_.RemoveFile(kInfoName));
  PENSTOCK_TRY(folder_.RemoveFile(kLockName));
  if (!made_ && !info_.temporary) return {};
  const auto [around, name] = SplitPath(path());
  PENSTOCK_ASSIGN(const Folder parent, Folder::Open(around));
  static_cast<void>(lock_.RemoveFolder(parent, name));  // unless the user has put something there
  return {};
}

/// Removes temporary runs without a commit whose process is gone.
void HeldRun::RemoveAbandoned(const std::string& root) {
  const Result<Folder> around = Folder::Open(root);
  if (!around.ok()) return;
  const Result<std::vector<std::string>> names = around->List();
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(kTemporaryName)) continue;
    Result<Folder> folder = around->OpenFolder(name);
    if (!folder.ok()) continue;
    const auto is_abandoned = [&](const Result<RunInfo>& info) {
      return info.ok() && info->kind != RunKind::kTrain && info->temporary && !info->state &&
             info->place == folder->path();
    };
    if (!is_abandoned(ReadRunInfo(*folder))) continue;
    Result<RunLock> lock = RunLock::TryTake(*folder);
    if (!lock.ok()) continue;
    Result<RunInfo> info = ReadCommittedInfo(*folder);
    if (!is_abandoned(info)) continue;
    HeldRun run(*std::move(folder), *std::move(lock));
    run.info_ = *std::move(info);
    run.places_ = {run.path()};
    Result<FolderWatch> watch = run.Watch();
    if (!watch.ok()) continue;
    run.watch_ = *std::move(watch);
    if (run.info_.run_uuid.empty()) run.info_.run_uuid = name;  // of the older format
    static_cast<void>(run.Close());  // what fails can wait for the next run
  }
}

}  // namespace penstock::train
