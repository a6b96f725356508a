// Detects that a folder of a long-running program, or a file in it, was removed, moved or replaced.
//
// Both front ends check before a commit counts (run/run_folder.h, front/training.h): a commit of a
// run whose folder is gone cannot be found again. Keeps the files open, so that no other file can
// take their identity. Threads: one at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock {

class FolderWatch {
 public:
  /// Remembers these files of a folder, which exist, as they are now. Errors: of opening them.
  static Result<FolderWatch> Begin(const Folder& folder, const std::vector<std::string>& names);

  /// Checks that the folder's path still leads to it, and that the files still are in it. Errors:
  /// kNotFound, naming what is gone; others if that cannot be seen.
  Status Check() const;

 private:
  struct File {
    std::string name;
    UniqueFd fd;
  };
  FolderWatch(Folder folder, std::vector<File> files)
      : folder_(std::move(folder)), files_(std::move(files)) {}

  Folder folder_;
  std::vector<File> files_;
};

}  // namespace penstock
