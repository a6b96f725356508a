// Removes a file of a state that is not in use, and, with path 0, the callers' files beside it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "base/unshared_fd.h"

namespace penstock::offload {

/// Holds the exclusive lock of one file of a state, so that no run or reader has the file, and none
/// takes it before it is removed. Threads: one.
class RemovableState {
 public:
  /// `uuid`, as text, is that of the state to which the file must belong. Errors: kNotFound;
  /// kUnavailable (in use); kCorruption for a link, for a file of another state, and for a file
  /// whose header is invalid, so that its state is not known. A file whose creation was cut off
  /// before it had its mark is empty; its name says to which state it belongs.
  static Result<RemovableState> Open(const std::string& path, const std::string& uuid);

  const std::string& path() const { return path_; }
  Bytes size() const { return size_; }
  FileId id() const { return id_; }
  /// The callers' files beside it (offload/caller_file.h), which go with it.
  const std::vector<FoundFile>& caller_files() const { return caller_files_; }
  /// Returns the path of one of them.
  std::string PathBeside(const FoundFile& file) const { return folder_.PathOf(file.name); }
  /// Unlinks the file, and before it the callers' files, durably, and closes it: NFS keeps a file
  /// that is open in its folder. To be called once. Errors: kNotFound if its name stands for
  /// another file by now.
  Status Remove();

 private:
  RemovableState(Folder folder, std::string path, UnsharedFd fd, const FolderEntry& entry,
                 std::vector<FoundFile> caller_files)
      : folder_(std::move(folder)),
        path_(std::move(path)),
        fd_(std::move(fd)),
        size_(entry.size),
        id_(entry.id),
        caller_files_(std::move(caller_files)) {}

  Folder folder_;
  std::string path_;
  UnsharedFd fd_;
  Bytes size_;
  FileId id_;
  std::vector<FoundFile> caller_files_;
};

}  // namespace penstock::offload
