#include "run/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "run/doubted_commit.h"
#include "run/leftovers.h"
#include "run/moved_run.h"
#include "run/rows/numerics_files.h"
#include "run/rows/put_aside.h"
#include "run/snapshot.h"
#include "run/snapshot_request.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSummaryName = "summary.json";
constexpr std::array<std::string_view, 8> kFileNames = {kInfoName,    kMetricsName,  kSummaryName,
                                                        kReportsName, kHeadroomName, kBlackBoxName,
                                                        kDoubtName,   kLockName};

/// Whether a run gives a file this name, or one that is made from it.
bool IsNameOfRun(const std::string& name) {
  std::string made = WithoutTemporary(name);
  if (made.ends_with(kAside)) made.resize(made.size() - std::string_view(kAside).size());
  return std::ranges::find(kFileNames, made) != kFileNames.end();
}

/// Whether these are what a run leaves that is killed before it has a run.json.
bool AreOfABeginning(const std::vector<std::string>& names) {
  return std::ranges::all_of(names, [](const std::string& name) {
    return name == kLockName || (name != kInfoName && WithoutTemporary(name) == kInfoName);
  });
}

/// Whether a folder has the run.json of a training that has no commit yet, as far as it says.
bool NamesNoCommit(const Folder& run) {
  const Result<RunInfo> info = ReadRunInfo(run);
  return info.ok() && info->kind == RunKind::kTrain && !info->state;
}

/// Returns the folder of a new run, and whether it was made. One that a run has left that ended
/// before its first commit is used again; an empty one is the user's.
Result<std::pair<Folder, bool>> FolderOfNewRun(const Folder& around, const std::string& name) {
  PENSTOCK_ASSIGN(const FolderEntry there, around.Look(name));
  if (there.kind == FolderEntry::Kind::kNone) {
    PENSTOCK_ASSIGN(Folder made, around.MakeFolder(name));
    return std::pair(std::move(made), true);
  }
  if (there.kind == FolderEntry::Kind::kFolder) {
    PENSTOCK_ASSIGN(Folder left, around.OpenFolder(name));
    PENSTOCK_ASSIGN(const std::vector<std::string> names, left.List());
    const bool begun = !names.empty() && AreOfABeginning(names);
    if (begun || NamesNoCommit(left)) return std::pair(std::move(left), false);
  }
  return Error{ErrorCode::kInvalidArgument, "it exists already"};
}

/// Takes back a folder that was made for a run whose lock is held, if nothing else is in it. Opens
/// nothing, because there may be no descriptor left.
void RemoveMade(const Folder& folder, const Folder& around, const std::string& name,
                RunLock& lock) {
  static_cast<void>(folder.RemoveFile(kLockName));
  static_cast<void>(lock.RemoveFolder(around, name));
}

/// Only a run can be resumed or cleaned, and no message advises to remove files of no run.
Error ExistsAlready(const std::string& path) {
  std::error_code ignored;
  const char* advice = "no run is in it; name another folder";
  if (fs::exists(fs::path(path) / kInfoName, ignored)) {
    advice =
        "resume from its last commit with --resume, name another folder, or remove it (penstock "
        "clean)";
  } else if (fs::is_directory(path, ignored) && fs::is_empty(path, ignored)) {
    advice = "it is empty; remove it (rmdir), or name another folder";
  }
  return MakeError(ErrorCode::kInvalidArgument, "--out {}: it exists already; {}", path, advice);
}

Error NoRun(const std::string& path, const std::string& info) {
  return MakeError(
      ErrorCode::kNotFound,
      "{} is not there: {} is not the folder of a run that penstock train made; name the "
      "folder of one",
      info, path);
}

Error NotBegun(const std::string& path, const std::string& info) {
  return MakeError(ErrorCode::kNotFound,
                   "{} is not there: a run in {} ended before it had begun, and nothing of it is "
                   "lost; penstock train without --resume begins it anew in the same folder, and "
                   "penstock clean removes it",
                   info, path);
}

/// Has this process let go of files of which it has descriptors, which are of /dev/null then: other
/// threads may use them until the process ends. On NFS an open file cannot be removed.
void LetGoOf(const std::vector<FoundFile>& files) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const Result<uint64_t> number = ParseWhole(entry.path().filename().string());
    if (!number.ok()) continue;
    const int fd = static_cast<int>(*number);
    const Result<FileId> id = IdOf(fd, entry.path().string());
    const auto is_it = [&](const FoundFile& file) { return id.ok() && file.id == *id; };
    if (std::ranges::any_of(files, is_it)) ::dup3(null.get(), fd, O_CLOEXEC);
  }
}

bool IsOfOneHost(const StateFiles& state) {
  return std::ranges::all_of(
      state.ranks, [&](const RankFiles& rank) { return rank.host == state.ranks.front().host; });
}

/// Removes the states of a run whose lock is held, if it ended before its first commit. Returns
/// whether it did. One of several hosts is for clean on each of them.
Result<bool> RemoveStatesOfABeginning(const Folder& run) {
  PENSTOCK_ASSIGN(RunInfo info, ReadRunInfo(run));
  if (info.kind != RunKind::kTrain || !std::ranges::all_of(info.leftovers, IsOfOneHost)) {
    return false;
  }
  if (IsCopy(run, info)) info.leftovers = FilesWithin(info.leftovers, run);
  PENSTOCK_TRY(TakeUnnamedCommit(&info));
  if (info.state) return false;
  for (const StateFiles& state : info.leftovers) {
    std::string why;
    const auto note = [&why](const std::string& said) { why = said; };
    if (!RemoveState(state, {run.path(), info.place}, note)) {
      return MakeError(ErrorCode::kUnavailable,
                       "{}: what a run that ended before its first commit has left cannot be "
                       "removed: {}",
                       run.path(), why);
    }
  }
  return true;
}

/// Removes what a new run that failed put into its folder; what others put there stays, with the
/// folder. `lock`: of the run, or one that holds nothing.
Status RemoveNewRun(const Folder& run, const Folder& around, RunLock& lock) {
  const Result<RunInfo> info = ReadRunInfo(run);
  const std::string run_uuid = info.ok() ? info->run_uuid : std::string();
  const Result<std::vector<FoundFile>> files = FilesOfRun(run);
  // If no descriptor is left for the list, there was none to write a file with either.
  if (files.ok()) {
    for (const FoundFile& file : *files) PENSTOCK_TRY(run.RemoveFile(file.name, file.id));
  }
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (snapshots.ok()) {
    PENSTOCK_ASSIGN(const std::vector<FoundFile> requests, RequestFiles(*snapshots, run_uuid));
    for (const FoundFile& file : requests) {
      PENSTOCK_TRY(snapshots->RemoveFile(file.name, file.id));
    }
    PENSTOCK_TRY(run.RemoveFolder(SplitPath(snapshots->path()).second));
  }
  PENSTOCK_ASSIGN(const FileId own, IdOf(run.fd(), run.path()));
  const std::string name = SplitPath(run.path()).second;
  PENSTOCK_ASSIGN(const FolderEntry there, around.Look(name));
  return there.id == own ? lock.RemoveFolder(around, name) : Status();
}

}  // namespace

Result<RunFolder> RunFolder::Create(const std::string& path) {
  // As it is written, so that "a/../run" names the run afterwards, although there was no "a".
  fs::path written = path;
  if (!written.has_filename()) written = written.parent_path();
  if (written.has_parent_path()) {
    PENSTOCK_TRY(MakeFolders(written.parent_path().string()).status());
  }
  PENSTOCK_ASSIGN(const std::string canonical, CanonicalPath(path));
  const auto [parent, name] = SplitPath(canonical);
  PENSTOCK_TRY(MakeFolders(parent).status());
  PENSTOCK_ASSIGN(Folder around, Folder::Open(parent));
  auto found = FolderOfNewRun(around, name);
  if (!found.ok() && found.error().code == ErrorCode::kInvalidArgument) return ExistsAlready(path);
  PENSTOCK_TRY(found.status());
  auto [folder, is_new] = *std::move(found);
  Result<RunLock> lock = RunLock::Take(folder);
  if (!lock.ok()) {
    // The holder of the lock has begun a run there meanwhile.
    const bool in_use = lock.error().code == ErrorCode::kUnavailable;
    if (is_new && !in_use) static_cast<void>(around.RemoveFolder(name));
    return lock.error();
  }
  Result<bool> is_free = EndedAtItsBeginning(folder);
  if (is_free.ok() && !*is_free) is_free = RemoveStatesOfABeginning(folder);
  if (!is_free.ok() && is_new) RemoveMade(folder, around, name, *lock);
  PENSTOCK_TRY(is_free.status());
  if (!*is_free) return ExistsAlready(path);
  const Result<std::vector<FoundFile>> left = FilesOfRun(folder);
  if (!left.ok() && is_new) RemoveMade(folder, around, name, *lock);
  PENSTOCK_TRY(left.status());
  for (const FoundFile& file : *left) {
    if (file.name != kLockName) PENSTOCK_TRY(folder.RemoveFile(file.name, file.id));
  }
  return RunFolder(std::move(folder), *std::move(lock), std::move(around));
}

Result<RunFolder> RunFolder::Open(const std::string& path) {
  PENSTOCK_ASSIGN(const std::string canonical, CanonicalPath(path));
  PENSTOCK_ASSIGN(Folder folder, Folder::Open(canonical));
  // In a folder that is no run's no lock is made, and one that becomes a run's meanwhile is not
  // used without.
  PENSTOCK_TRY(ReadRunInfo(folder).status());
  PENSTOCK_ASSIGN(RunLock lock, RunLock::Take(folder));
  return RunFolder(std::move(folder), std::move(lock), std::nullopt);
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : folder_(std::move(other.folder_)),
      lock_(std::move(other.lock_)),
      created_in_(std::exchange(other.created_in_, std::nullopt)),
      watch_(std::move(other.watch_)) {}

RunFolder::~RunFolder() {
  if (!created_in_) return;
  // The failure that brought it here is the one to report.
  try {
    watch_.reset();  // its files are removed, and have to be closed for that on NFS
    static_cast<void>(RemoveNewRun(folder_, *created_in_, lock_));
  } catch (const std::exception&) {  // out of memory, in a library
    return;
  }
}

void RemoveNewRun(const std::string& path, const std::string& run_uuid) {
  try {
    const Result<Folder> run = Folder::Open(path);
    const Result<Folder> around = Folder::Open(SplitPath(path).first);
    if (!run.ok() || !around.ok()) return;
    const Result<RunInfo> info = ReadRunInfo(*run);
    const Result<bool> ended = EndedAtItsBeginning(*run);
    if ((ended.ok() && *ended) || (info.ok() && info->run_uuid == run_uuid)) {
      const Result<std::vector<FoundFile>> files = FilesOfRun(*run);
      RunLock not_ours;
      if (RemoveNewRun(*run, *around, not_ours).ok() || !files.ok()) return;
      LetGoOf(*files);
      static_cast<void>(around->RemoveFolder(SplitPath(path).second));
    }
  } catch (const std::exception&) {  // out of memory, in a library
    return;
  }
}

Status RunFolder::WriteInfo(const RunInfo& info) const { return WriteRunInfo(folder_, info); }

Status RunFolder::NameFirstCommit(const RunInfo& info, const Notify& notify) {
  PENSTOCK_TRY(WriteInfo(info));
  NoteOwner(*info.state, folder_, notify);
  return Watch();
}

Status RunFolder::WriteSummary(const std::string& text) const {
  return WriteTextFile(folder_, kSummaryName, text);
}

std::string RunFolder::SummaryPath() const { return folder_.PathOf(kSummaryName); }

Result<bool> RunFolder::HasSummary() const {
  PENSTOCK_ASSIGN(const FolderEntry summary, folder_.Look(kSummaryName));
  return summary.kind != FolderEntry::Kind::kNone;
}

Result<MetricsWriter> RunFolder::CreateRows() const {
  return MetricsWriter::Create(folder_, kMetricsName);
}

Result<MetricsWriter> RunFolder::ResumeRows(uint64_t step, const std::string& row,
                                            const Notify& notify) const {
  return MetricsWriter::Resume(folder_, kMetricsName, step, row, notify);
}

Status RunFolder::Watch() {
  PENSTOCK_ASSIGN(watch_, FolderWatch::Begin(folder_, {kInfoName, kMetricsName}));
  return {};
}

Status RunFolder::CheckWhole() const {
  PENSTOCK_CHECK(watch_.has_value());
  return watch_->Check();
}

Result<bool> HasRows(const Folder& run) {
  PENSTOCK_ASSIGN(const FolderEntry rows, run.Look(kMetricsName));
  return rows.kind != FolderEntry::Kind::kNone;
}

Status CopyRows(const Folder& from, const Folder& to, uint64_t step) {
  PENSTOCK_ASSIGN(const bool there, HasRows(from));
  if (!there) return WriteTextFile(to, kMetricsName, "");
  // A damaged file may have any size.
  PENSTOCK_ASSIGN(const FileOffset end, MetricsWriter::EndOf(from, kMetricsName, step));
  const Bytes size{end.value};
  PENSTOCK_ASSIGN(const InputFile rows, InputFile::Open(from, kMetricsName));
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> copy,
                  OutputFile::Create(to, kMetricsName, size));
  PENSTOCK_TRY(CopyBytes(rows, size, *copy));
  return copy->Finish();
}

Status CheckRows(const Folder& run, uint64_t step) {
  return MetricsWriter::EndOf(run, kMetricsName, step).status();
}

Status CutRows(const Folder& run, uint64_t step, const std::string& row, const Notify& notify) {
  return MetricsWriter::Resume(run, kMetricsName, step, row, notify).status();
}

Result<bool> EndedAtItsBeginning(const Folder& run) {
  PENSTOCK_ASSIGN(const std::vector<std::string> names, run.List());
  return AreOfABeginning(names);
}

Result<std::vector<FoundFile>> FilesOfRun(const Folder& run) {
  PENSTOCK_ASSIGN(std::vector<std::string> names, run.List());
  std::vector<FoundFile> files;
  for (std::string& name : names) {
    if (!IsNameOfRun(name)) continue;
    PENSTOCK_ASSIGN(const FolderEntry entry, run.Look(name));
    if (entry.kind != FolderEntry::Kind::kFile) continue;
    files.push_back({.name = std::move(name), .id = entry.id, .size = entry.size});
  }
  // The lock goes last: a folder that holds nothing else counts as empty (EndedAtItsBeginning).
  const auto rank = [](const FoundFile& file) {
    return file.name == kLockName ? 2 : file.name == kInfoName ? 1 : 0;
  };
  std::ranges::stable_sort(files, std::less<>(), rank);
  return files;
}

Result<RunInfo> ReadRunInfo(const Folder& run) {
  const std::string path = run.PathOf(kInfoName);
  const Result<std::string> text = ReadTextFile(run, kInfoName, kMaxOwnText);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) {
    const Result<std::vector<std::string>> names = run.List();
    const bool left = names.ok() && !names->empty() && AreOfABeginning(*names);
    return left ? NotBegun(run.path(), path) : NoRun(run.path(), path);
  }
  PENSTOCK_TRY(text.status());
  return ParseRunInfo(*text, run);
}

Result<RunInfo> ReadRunInfo(const std::string& path) {
  PENSTOCK_ASSIGN(const Folder run, OpenRun(path));
  return ReadRunInfo(run);
}

Result<Folder> OpenRun(const std::string& path) {
  Result<Folder> run = Folder::Open(path);
  if (run.ok() || run.error().code != ErrorCode::kNotFound) return run;
  return NoRun(path, (fs::path(path) / kInfoName).string());
}

}  // namespace penstock::train
