// Folders that are held open, and names of files and folders that are durable.
//
// A folder that a user can change is not trusted: between two calls its path may lead elsewhere,
// and a name in it may be a link, a pipe or a device. So a Folder is opened once and kept by its
// descriptor. Names in it are single components, links are not followed, and only regular files and
// folders are opened.
//
// Threads: any number.
#pragma once

#include <sys/types.h>

#include <compare>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace penstock {

/// Identifies a file or folder, independent of its name, as long as it exists.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};

/// What a name in a folder stands for.
struct FolderEntry {
  enum class Kind { kNone, kFile, kFolder, kOther /* a link, pipe, socket or device */ };
  Kind kind = Kind::kNone;
  FileId id;
  Bytes size;
};

/// A regular file as it was found in a folder. It is removed later only if it is still the same
/// file.
struct FoundFile {
  std::string name;
  FileId id;
  Bytes size;
};

class Folder {
 public:
  /// Opens the folder at `path`, which may lead through links. Errors: kNotFound (also if something
  /// else has that path), kPermission.
  static Result<Folder> Open(const std::string& path);
  /// Returns the same folder with a descriptor of its own.
  Result<Folder> Reopen() const;

  /// The path that was given to Open, for messages and for calls that take no descriptor.
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;
  int fd() const { return fd_.get(); }

  /// Returns all names in the folder, sorted.
  Result<std::vector<std::string>> List() const;
  /// Errors: of stat. A name that does not exist is no error.
  Result<FolderEntry> Look(const std::string& name) const;
  /// Whether `path` leads to this folder. Errors: of stat. A path that does not exist is no error.
  Result<bool> IsAt(const std::string& path) const;

  /// Opens a regular file with these flags of open. Errors: kNotFound, kPermission; kCorruption if
  /// the name stands for something else.
  Result<UniqueFd> OpenFile(const std::string& name, int flags, mode_t mode = 0666) const;
  /// Opens a folder in it. Errors: those of OpenFile.
  Result<Folder> OpenFolder(const std::string& name) const;
  /// Creates a folder in it, durably, and opens it. Errors: of mkdir, also if the name is taken.
  Result<Folder> MakeFolder(const std::string& name) const;

  /// Gives a file or folder another name, which must be free. Errors: kInvalidArgument if it is
  /// taken. (On file systems that have neither such a rename nor links, the name is looked up
  /// beforehand.)
  Status Rename(const std::string& from, const std::string& to) const;
  /// Gives a file another name. A file that has this name is replaced; anything else is not.
  Status Replace(const std::string& from, const std::string& to) const;
  Status RemoveFile(const std::string& name) const;
  /// The same for a file that had this name and identity when it was found. Errors: kNotFound if it
  /// is gone, or if the name stands for another file, which stays.
  Status RemoveFile(const std::string& name, const FileId& id) const;
  /// Removes an empty folder.
  Status RemoveFolder(const std::string& name) const;
  /// Makes durable what was created, renamed or removed in it.
  Status Sync() const;

 private:
  Folder(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

/// Opens the regular file that `path` names; a link of this name is not followed. The file's folder
/// must be searchable, but need not be readable. Errors: those of Folder::Open and
/// Folder::OpenFile.
Result<UniqueFd> OpenFileAt(const std::string& path, int flags);

/// Splits a path into its folder ("." if it names none) and its name in that folder.
std::pair<std::string, std::string> SplitPath(const std::string& path);

/// Returns the identity of an open file or folder. Errors: of fstat, naming `path`.
Result<FileId> IdOf(int fd, const std::string& path);
/// Returns the identity of the file, folder or link that a path names. Errors: kNotFound.
Result<FileId> IdAt(const std::string& path);

/// Makes what was created, renamed or removed in a folder durable. Errors: of open and fsync, with
/// the folder's path.
Status SyncFolder(const std::string& path);

/// Makes a folder and the missing folders above it, durably; all or none. Returns those that it
/// made, innermost first.
Result<std::vector<std::string>> MakeFolders(const std::string& path);

}  // namespace penstock
