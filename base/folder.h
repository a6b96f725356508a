// Folders that are held open, and names of files and folders that are durable.
//
// A folder that a user can change is hostile ground: between two calls its path may lead elsewhere,
// and a name in it may stand for a link, a pipe or a device. So a Folder is opened once and kept by
// its descriptor; names in it are single components, links among them are not followed, and what is
// opened is a regular file or a folder.
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

/// Tells a file or folder from all others, whatever it is called, as long as it exists.
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

/// A regular file in a folder as it was found there: what is removed later must still be it.
struct FoundFile {
  std::string name;
  FileId id;
  Bytes size;
};

class Folder {
 public:
  /// Opens the folder at `path`, which may lead through links. Errors: kNotFound (also where
  /// something else is there), kPermission.
  static Result<Folder> Open(const std::string& path);
  /// The same folder with a descriptor of its own.
  Result<Folder> Reopen() const;

  /// As it was given to Open, for messages and for what takes no descriptor.
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;
  int fd() const { return fd_.get(); }

  /// All names in it, sorted.
  Result<std::vector<std::string>> List() const;
  /// Errors: of stat; a name that is not there is no error.
  Result<FolderEntry> Look(const std::string& name) const;
  /// Whether `path` leads to this folder. Errors: of stat; that nothing is there is none.
  Result<bool> IsAt(const std::string& path) const;

  /// Opens a regular file with these flags of open. Errors: kNotFound, kPermission; kCorruption
  /// where the name stands for something else.
  Result<UniqueFd> OpenFile(const std::string& name, int flags, mode_t mode = 0666) const;
  /// Opens a folder in it. Errors: those of OpenFile.
  Result<Folder> OpenFolder(const std::string& name) const;
  /// Creates a folder in it, durably, and opens it. Errors: of mkdir, where the name is taken, too.
  Result<Folder> MakeFolder(const std::string& name) const;

  /// Gives a file or folder another name, which must be free. Errors: kInvalidArgument where it is
  /// taken. (File systems that know neither such a rename nor links are asked beforehand.)
  Status Rename(const std::string& from, const std::string& to) const;
  /// Gives a file another name; a file that has it by now is replaced, and nothing else.
  Status Replace(const std::string& from, const std::string& to) const;
  Status RemoveFile(const std::string& name) const;
  /// The same, of what had this name and identity when it was looked at. Errors: kNotFound where it
  /// is gone or the name stands for another, which stays.
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

/// Opens the regular file that `path` names, and no link that has this name. Its folder must be
/// searchable, and need not be readable. Errors: those of Folder::Open and Folder::OpenFile.
Result<UniqueFd> OpenFileAt(const std::string& path, int flags);

/// A path as the folder that it lies in, "." where it names none, and its name in there.
std::pair<std::string, std::string> SplitPath(const std::string& path);

/// Which file or folder is open. Errors: of fstat, naming `path`.
Result<FileId> IdOf(int fd, const std::string& path);
/// Which file, folder or link a path names. Errors: kNotFound.
Result<FileId> IdAt(const std::string& path);

/// Makes what was created, renamed or removed in a folder durable. Errors: of open and fsync, with
/// the folder's path.
Status SyncFolder(const std::string& path);

/// Makes a folder and those above it that are missing, durably. Those it made, innermost first; all
/// or none.
Result<std::vector<std::string>> MakeFolders(const std::string& path);

}  // namespace penstock
