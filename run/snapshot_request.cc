#include "run/snapshot_request.h"

#include <fcntl.h>

#include <algorithm>
#include <string_view>

#include "base/file_lock.h"
#include "base/files.h"
#include "run/snapshot.h"

namespace penstock::train {
namespace {

constexpr std::string_view kRequest = ".request";
constexpr std::string_view kAnswer = ".answer";

std::string RequestName(const std::string& name) { return fmt::format(".{}{}", name, kRequest); }
std::string AnswerName(const std::string& name) { return fmt::format(".{}{}", name, kAnswer); }

bool IsHeld(const Folder& snapshots, const std::string& request) {
  const Result<UniqueFd> fd = snapshots.OpenFile(request, O_RDONLY);
  if (!fd.ok()) return false;
  const Status shared = TryLockFile(fd->get(), /*exclusive=*/false, request);
  return !shared.ok() && shared.error().code == ErrorCode::kUnavailable;
}

bool IsThere(const Folder& snapshots, const std::string& name) {
  const Result<FolderEntry> entry = snapshots.Look(name);
  return entry.ok() && entry->kind != FolderEntry::Kind::kNone;
}

/// As its text says; an empty one may be, and holds nothing to lose.
bool IsOurs(const Folder& snapshots, const std::string& name, const std::string& run_uuid) {
  const Result<std::string> text = ReadTextFile(snapshots, name, kMaxOwnText);
  return text.ok() && (IsBlank(*text) || (!run_uuid.empty() && text->starts_with(run_uuid)));
}

Status CheckOurs(const Folder& snapshots, const std::string& run_uuid, const std::string& name) {
  if (!IsThere(snapshots, name) || IsOurs(snapshots, name, run_uuid)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} is there and was not made by this run; take another name for the snapshot, "
                   "or remove that file",
                   snapshots.PathOf(name));
}

}  // namespace

Result<SnapshotRequest> SnapshotRequest::Make(const Folder& run, const std::string& run_uuid,
                                              const std::string& name) {
  PENSTOCK_ASSIGN(Folder snapshots, MakeSnapshotsFolder(run));
  const std::string request = RequestName(name);
  if (IsHeld(snapshots, request)) {
    return MakeError(ErrorCode::kUnavailable,
                     "another process is asking for the snapshot {} of {}; wait for it, or take "
                     "another name",
                     name, run.path());
  }
  const std::string answer = AnswerName(name);
  PENSTOCK_TRY(CheckOurs(snapshots, run_uuid, request));
  PENSTOCK_TRY(CheckOurs(snapshots, run_uuid, answer));
  if (IsThere(snapshots, answer)) PENSTOCK_TRY(snapshots.RemoveFile(answer));
  // It is locked before it has its name: the training never sees one that looks abandoned.
  PENSTOCK_ASSIGN(const std::string temporary, TemporaryName(snapshots, request));
  PENSTOCK_ASSIGN(UnsharedFd fd, UnsharedFd::Open([&] {
                    return snapshots.OpenFile(temporary, O_RDWR | O_CREAT | O_EXCL);
                  }));
  const Status locked = TryLockFile(fd.get(), /*exclusive=*/true, snapshots.PathOf(temporary));
  const Status named = locked.ok() ? snapshots.Replace(temporary, request) : locked;
  if (!named.ok()) {
    static_cast<void>(snapshots.RemoveFile(temporary));
    return named.error();
  }
  return SnapshotRequest(std::move(snapshots), run_uuid, name, std::move(fd));
}

bool SnapshotRequest::answered() const { return !IsThere(snapshots_, RequestName(name_)); }

Status SnapshotRequest::Answer() const {
  const std::string answer = AnswerName(name_);
  if (!IsThere(snapshots_, answer) || !IsOurs(snapshots_, answer, run_uuid_)) return {};
  PENSTOCK_ASSIGN(const std::string why, ReadTextFile(snapshots_, answer, kMaxOwnText));
  static_cast<void>(snapshots_.RemoveFile(answer));
  return MakeError(ErrorCode::kIo, "snapshot {}: {}", name_, why.substr(why.find('\n') + 1));
}

void SnapshotRequest::TakeBack() const {
  static_cast<void>(snapshots_.RemoveFile(RequestName(name_)));
}

std::vector<std::string> RequestedSnapshots(const Folder& run) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok()) return {};
  const Result<std::vector<std::string>> files = snapshots->List();
  if (!files.ok()) return {};
  std::vector<std::string> names;
  for (const std::string& file : *files) {
    const std::optional<std::string> name = HiddenSnapshotName(file, kRequest);
    if (name && IsHeld(*snapshots, file)) names.push_back(*name);
  }
  return names;
}

bool AnswerRequest(const Folder& run, const std::string& run_uuid, const std::string& name,
                   const Status& taken) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok()) return false;
  if (!taken.ok() && CheckOurs(*snapshots, run_uuid, AnswerName(name)).ok()) {
    // The program that asked finds the reason here; if it cannot be written, the snapshot is
    // missing.
    static_cast<void>(WriteTextFile(*snapshots, AnswerName(name),
                                    fmt::format("{}\n{}", run_uuid, taken.error().message)));
  }
  return snapshots->RemoveFile(RequestName(name)).ok();
}

Result<std::vector<FoundFile>> RequestFiles(const Folder& snapshots, const std::string& run_uuid) {
  PENSTOCK_ASSIGN(std::vector<std::string> names, snapshots.List());
  std::vector<FoundFile> files;
  for (std::string& name : names) {
    const std::string whole = WithoutTemporary(name);
    if (!HiddenSnapshotName(whole, kRequest) && !HiddenSnapshotName(whole, kAnswer)) continue;
    // Looked at before it is read: a file that takes its place meanwhile has another identity.
    PENSTOCK_ASSIGN(const FolderEntry entry, snapshots.Look(name));
    if (!IsOurs(snapshots, name, run_uuid)) continue;
    files.push_back({.name = std::move(name), .id = entry.id, .size = entry.size});
  }
  return files;
}

}  // namespace penstock::train
