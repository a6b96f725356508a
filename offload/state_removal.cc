#include "offload/state_removal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "base/file_lock.h"
#include "offload/caller_file.h"
#include "offload/state_format.h"
#include "offload/state_path.h"
#include "offload/uuid.h"

namespace penstock::offload {
namespace {

Error Unknown(const std::string& path, const std::string& why) {
  return MakeError(ErrorCode::kCorruption,
                   "{} is not removed: {}; remove it by hand, if it is no longer of use", path,
                   why);
}

Status CheckIs(const Result<Uuid>& found, const std::string& path, const std::string& uuid) {
  if (!found.ok() && found.error().code == ErrorCode::kIo) return found.error();
  if (!found.ok()) return Unknown(path, found.error().message);
  if (ToString(*found) == uuid) return {};
  return Unknown(path,
                 fmt::format("it belongs to the state {}, not to {}", ToString(*found), uuid));
}

/// For a file with an invalid or unreadable header, returns that of the copy at its end, or
/// `first`.
Result<Uuid> UuidAtEnd(int fd, const Result<Uuid>& first) {
  struct stat info {};
  std::vector<std::byte> header(kHeaderBytes.value);
  if (first.ok() || ::fstat(fd, &info) != 0) return first;
  ssize_t got = 0;
  do {
    got =
        ::pread(fd, header.data(), header.size(), info.st_size - static_cast<off_t>(header.size()));
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(header.size())) return first;
  const Result<Uuid> second = UuidOf(header);
  return second.ok() ? second : first;
}

Status CheckUuid(int fd, const std::string& path, const std::string& uuid) {
  std::vector<std::byte> header(kHeaderBytes.value);
  ssize_t got = 0;
  do {
    got = ::pread(fd, header.data(), header.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    const Result<Uuid> first = ErrnoError(errno, "reading the header of " + path);
    return CheckIs(UuidAtEnd(fd, first), path, uuid);
  }
  // One that was cut off before it had its mark is known by its name alone, which has the whole
  // UUID.
  const bool begun = std::ranges::any_of(std::span(header).first(static_cast<size_t>(got)),
                                         [](std::byte byte) { return byte != std::byte{}; });
  const std::string name = std::filesystem::path(path).filename().string();
  if (!begun && name.starts_with(fmt::format("penstock-{}.", uuid))) return {};
  if (static_cast<size_t>(got) < header.size()) return Unknown(path, "it is too short for a state");
  return CheckIs(UuidAtEnd(fd, UuidOf(header)), path, uuid);
}

}  // namespace

Result<RemovableState> RemovableState::Open(const std::string& path, const std::string& uuid) {
  const std::pair<std::string, std::string> place = SplitPath(path);
  const std::string& name = place.second;
  PENSTOCK_ASSIGN(Folder folder, Folder::Open(place.first));
  Result<UnsharedFd> fd = UnsharedFd::Open(
      [&folder, &name] { return folder.OpenFile(name, O_RDWR); });  // as its lock needs it
  if (!fd.ok() && fd.error().code == ErrorCode::kCorruption) {
    return Unknown(path, "it is not a regular file");
  }
  PENSTOCK_TRY(fd.status());
  PENSTOCK_TRY(LockFile(fd->get(), true, path));
  PENSTOCK_TRY(CheckUuid(fd->get(), path, uuid));
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(name));
  PENSTOCK_ASSIGN(std::vector<FoundFile> callers, FindCallerFiles(folder, path));
  return RemovableState(std::move(folder), path, *std::move(fd), entry, std::move(callers));
}

Status RemovableState::Remove() {
  const std::string name = SplitPath(path_).second;
  PENSTOCK_ASSIGN(const FileId own, IdOf(fd_.get(), path_));
  for (const FoundFile& file : caller_files_) {
    PENSTOCK_TRY(folder_.RemoveFile(file.name, file.id));
  }
  if (!caller_files_.empty()) PENSTOCK_TRY(folder_.Sync());
  PENSTOCK_TRY(folder_.RemoveFile(name, own));
  fd_ = UnsharedFd();
  return folder_.Sync();
}

}  // namespace penstock::offload
