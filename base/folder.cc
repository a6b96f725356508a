#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

const char* KindText(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a file";
    case S_IFDIR:
      return "a folder";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

FolderEntry::Kind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return FolderEntry::Kind::kFile;
  return S_ISDIR(mode) ? FolderEntry::Kind::kFolder : FolderEntry::Kind::kOther;
}

FileId MakeId(const struct stat& info) { return {.device = info.st_dev, .inode = info.st_ino}; }

Error WrongKind(const std::string& path, mode_t mode, mode_t wanted) {
  return MakeError(ErrorCode::kCorruption,
                   "{} is {}, where {} is expected; it is not used: remove it, or put what belongs "
                   "there in its place",
                   path, KindText(mode), KindText(wanted));
}

std::string PathIn(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

Result<UniqueFd> OpenFolderAt(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags));
  if (fd.valid()) return fd;
  const bool something_else = errno == ENOTDIR;
  Error error = ErrnoError(errno, "opening the folder " + path);
  if (something_else) error.code = ErrorCode::kNotFound;
  return error;
}

/// An open folder, and its path for messages.
struct OpenedFolder {
  int fd;
  const std::string& path;
};

/// Opens what `name` stands for if that is of the requested `kind` (S_IFREG, S_IFDIR), and nothing
/// else: to open a device or a pipe may wait, or do something.
Result<UniqueFd> OpenKind(const OpenedFolder& folder, const std::string& name, mode_t kind,
                          int flags, mode_t mode) {
  const std::string path = PathIn(folder.path, name);
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is no name in the folder {}", name,
                     folder.path);
  }
  struct stat info {};
  const bool there = ::fstatat(folder.fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (there && (info.st_mode & S_IFMT) != kind) return WrongKind(path, info.st_mode, kind);
  UniqueFd fd(::openat(folder.fd, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  if (!fd.valid()) {
    const bool create = !there && (flags & O_CREAT) != 0;
    return ErrnoError(errno, (create ? "creating " : "opening ") + path);
  }
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(errno, "looking at " + path);
  if ((info.st_mode & S_IFMT) != kind) return WrongKind(path, info.st_mode, kind);
  return fd;
}

/// Adds what it makes to `made`, innermost first, even if it fails.
Status MakeMissing(const fs::path& absolute, std::vector<std::string>* made) {
  std::error_code error;
  fs::path folder;
  // Name by name, as the system reads a path: "a/.." is there when "a" is.
  for (const fs::path& name : absolute) {
    folder /= name;
    if (fs::exists(folder, error)) continue;
    const bool failed = ::mkdir(folder.c_str(), 0777) != 0;
    if (failed && errno == EEXIST && fs::is_directory(folder, error)) continue;  // just made
    if (failed) return ErrnoError(errno, "creating the folder " + folder.string());
    made->insert(made->begin(), folder.string());
    PENSTOCK_TRY(SyncFolder(SplitPath(folder.string()).first));
  }
  return {};
}

}  // namespace

std::string Folder::PathOf(const std::string& name) const { return PathIn(path_, name); }

Result<Folder> Folder::Open(const std::string& path) {
  PENSTOCK_ASSIGN(UniqueFd fd, OpenFolderAt(path, kFolderFlags));
  return Folder(path, std::move(fd));
}

Result<Folder> Folder::Reopen() const {
  UniqueFd fd(::openat(fd_.get(), ".", kFolderFlags));
  if (!fd.valid()) return ErrnoError(errno, "opening the folder " + path_);
  return Folder(path_, std::move(fd));
}

Result<std::vector<std::string>> Folder::List() const {
  PENSTOCK_ASSIGN(Folder again, Reopen());  // a list has a place of its own in the folder
  DIR* const opened = ::fdopendir(again.fd());
  if (opened == nullptr) return ErrnoError(errno, "listing " + path_);
  static_cast<void>(again.fd_.Release());  // the list closes it
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opened, ::closedir);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(list.get())) {  // NOLINT(concurrency-mt-unsafe)
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  if (errno != 0) return ErrnoError(errno, "listing " + path_);
  std::ranges::sort(names);
  return names;
}

Result<FolderEntry> Folder::Look(const std::string& name) const {
  struct stat info {};
  if (::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return FolderEntry{.kind = KindOf(info.st_mode),
                       .id = MakeId(info),
                       .size = Bytes{static_cast<uint64_t>(info.st_size)}};
  }
  if (errno == ENOENT) return FolderEntry{};
  return ErrnoError(errno, "looking at " + PathOf(name));
}

Result<bool> Folder::IsAt(const std::string& path) const {
  struct stat named {};
  if (::stat(path.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ESTALE) return false;
    return ErrnoError(errno, "looking at " + path);
  }
  const Result<FileId> held = IdOf(fd_.get(), path_);
  if (!held.ok() && held.error().code == ErrorCode::kNotFound) return false;
  PENSTOCK_TRY(held.status());
  return MakeId(named) == *held;
}

Result<UniqueFd> Folder::OpenFile(const std::string& name, int flags, mode_t mode) const {
  return OpenKind({fd(), path_}, name, S_IFREG, flags, mode);
}

Result<Folder> Folder::OpenFolder(const std::string& name) const {
  PENSTOCK_ASSIGN(UniqueFd fd, OpenKind({fd(), path_}, name, S_IFDIR, O_RDONLY | O_DIRECTORY, 0));
  return Folder(PathOf(name), std::move(fd));
}

Result<Folder> Folder::MakeFolder(const std::string& name) const {
  if (::mkdirat(fd_.get(), name.c_str(), 0777) != 0) {
    return ErrnoError(errno, "creating the folder " + PathOf(name));
  }
  Result<Folder> made = OpenFolder(name);
  const Status synced = made.ok() ? Sync() : made.status();
  if (synced.ok()) return made;
  static_cast<void>(RemoveFolder(name));
  return synced.error();
}

Status Folder::Rename(const std::string& from, const std::string& to) const {
  int result = ::renameat2(fd_.get(), from.c_str(), fd_.get(), to.c_str(), RENAME_NOREPLACE);
  if (result != 0 && errno == EINVAL) {
    // The file system has no such rename. A link never replaces either.
    result = ::linkat(fd_.get(), from.c_str(), fd_.get(), to.c_str(), 0);
    if (result == 0) return RemoveFile(from);
    if (errno == EPERM) {  // a folder has no links, and some file systems have none at all
      PENSTOCK_ASSIGN(const FolderEntry taken, Look(to));
      const bool free = taken.kind == FolderEntry::Kind::kNone;
      if (free) result = ::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str());
      if (!free) errno = EEXIST;
    }
  }
  if (result == 0) return {};
  if (errno != EEXIST) return ErrnoError(errno, "naming " + PathOf(to));
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} was made by somebody else meanwhile, and is not replaced", PathOf(to));
}

Status Folder::Replace(const std::string& from, const std::string& to) const {
  struct stat info {};
  const bool taken = ::fstatat(fd_.get(), to.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (taken && !S_ISREG(info.st_mode)) return WrongKind(PathOf(to), info.st_mode, S_IFREG);
  if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) == 0) return {};
  return ErrnoError(errno, fmt::format("renaming {} to {}", PathOf(from), to));
}

Status Folder::RemoveFile(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), 0) == 0) return {};
  return ErrnoError(errno, "removing " + PathOf(name));
}

Status Folder::RemoveFile(const std::string& name, const FileId& id) const {
  PENSTOCK_ASSIGN(const FolderEntry there, Look(name));
  if (there.kind != FolderEntry::Kind::kNone && there.id == id) return RemoveFile(name);
  return MakeError(ErrorCode::kNotFound, "removing {}: it is gone, or another file is there",
                   PathOf(name));
}

Status Folder::RemoveFolder(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) == 0) return {};
  return ErrnoError(errno, "removing the folder " + PathOf(name));
}

Status Folder::Sync() const {
  if (::fsync(fd_.get()) == 0) return {};
  return ErrnoError(errno, "synchronising the folder " + path_);
}

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const fs::path whole = path;
  const std::string folder = whole.parent_path().string();
  return {folder.empty() ? "." : folder, whole.filename().string()};
}

Result<UniqueFd> OpenFileAt(const std::string& path, int flags) {
  const auto [parent, name] = SplitPath(path);
  const Result<UniqueFd> folder = OpenFolderAt(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder.ok()) return OpenKind({folder->get(), parent}, name, S_IFREG, flags, 0);
  return Error{folder.error().code, fmt::format("opening {}: {}", path, folder.error().message)};
}

Result<FileId> IdOf(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoError(errno, "looking at " + path);
  return MakeId(info);
}

Result<FileId> IdAt(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoError(errno, "looking at " + path);
  return MakeId(info);
}

Status SyncFolder(const std::string& path) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(path));
  return folder.Sync();
}

Result<std::vector<std::string>> MakeFolders(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) return ErrnoError(error.value(), "creating " + path);
  std::vector<std::string> made;
  const Status status = MakeMissing(absolute, &made);
  if (status.ok()) return made;
  for (const std::string& folder : made) ::rmdir(folder.c_str());
  return status.error();
}

}  // namespace penstock
