// A file of lines in a run's folder, to which whole lines are appended.
//
// Threads: lines are appended by one. Another may synchronise them at the same time: the file holds
// nothing but the descriptor, and all lines appended before are synchronised.
#pragma once

#include <string>
#include <utility>

#include "base/folder.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::train {

class LineFile {
 public:
  /// `fd` is open for appending; `path` is for messages.
  LineFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  /// Hands the line and its line break to the kernel. If there is no space for all of it, none of
  /// it stays.
  Status Append(const std::string& line);
  /// All appended lines are on the drive afterwards.
  Status Sync() const;
  /// Whether it is still the file of this name; true if that cannot be found out.
  bool IsAt(const Folder& folder, const std::string& name) const;

 private:
  void TakeBack(size_t bytes);

  std::string path_;
  UniqueFd fd_;
};

}  // namespace penstock::train
