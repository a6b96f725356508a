// A file of a copy while it is written: under its UnfinishedCopy name, and locked. It is removed,
// unless it is finished and, once all files of the copy are, kept.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "aio/file.h"
#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "base/unshared_fd.h"
#include "offload/state_names.h"

namespace penstock::offload {

class CopyTarget {
 public:
  /// `path`: that it has once it is finished. Errors: kInvalidArgument if something has that path;
  /// those of Folder::OpenFile, also if there is an unfinished one; kUnavailable if another process
  /// has it.
  static Result<CopyTarget> Create(const std::string& path);
  /// What is said of a path that something has.
  static Error Taken(const std::string& path);
  CopyTarget(CopyTarget&& other) noexcept
      : folder_(std::move(other.folder_)),
        name_(std::move(other.name_)),
        fd_(std::move(other.fd_)),
        finished_(other.finished_),
        kept_(std::exchange(other.kept_, true)) {}
  CopyTarget& operator=(CopyTarget&&) = delete;
  ~CopyTarget();

  std::string path() const { return folder_.PathOf(name_); }
  Result<dev_t> FileSystem() const;
  /// Returns what is free on its file system.
  Result<Bytes> Free() const;

  /// Makes it share the blocks of another file. Whether the file system did it.
  bool Clone(int from);
  /// Gives blocks back, where the file system can; the bytes are zeros then.
  Status PunchHole(FileOffset offset, Bytes size);
  Status Resize(Bytes size);
  /// Reserves space if the file system can; otherwise a lack shows when writing.
  Status Reserve(FileOffset offset, Bytes size);
  Status Write(FileOffset offset, std::span<const std::byte> bytes) const;

  /// Opens it once more, for an engine to write to.
  Result<aio::File> Reopen() const;

  Status Sync();
  /// Gives a synchronised file its name. Without Keep it is removed all the same.
  Status Finish();
  void Keep() { kept_ = true; }

 private:
  CopyTarget(Folder folder, std::string name, UnsharedFd fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(std::move(fd)) {}
  std::string temporary() const { return UnfinishedCopy(path()); }

  Folder folder_;
  std::string name_;
  UnsharedFd fd_;
  bool finished_ = false;  ///< has its name
  bool kept_ = false;
};

}  // namespace penstock::offload
