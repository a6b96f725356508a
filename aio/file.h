// An open file for requests to an engine: with O_DIRECT or without, its alignment, and its space.
//
// A forked child has none of its descriptors: one of them may hold the lock of a state.
//
// Threads: const functions from any; the others one at a time.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/mapping.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "base/unshared_fd.h"

namespace penstock::aio {

/// Movable; must outlive the requests on it.
class File {
 public:
  struct OpenOptions {
    bool create = false;    ///< fail if the path exists already (O_CREAT | O_EXCL), mode 0600
    bool writable = false;  ///< O_RDWR instead of O_RDONLY
    bool direct = true;     ///< O_DIRECT; a file system that refuses it is kUnavailable
  };

  /// Errors: kNotFound, kPermission, kUnavailable (no O_DIRECT), kOutOfSpace, kIo; each names the
  /// path.
  static Result<File> Open(const std::string& path, const OpenOptions& options);
  /// Opens the file of an open descriptor once more, even if its path changed: with O_DIRECT where
  /// the file system has it, else buffered (alignment() is 1). `path`: for messages. Errors: of
  /// opening it.
  static Result<File> Reopen(int fd, const std::string& path, bool writable);
  /// Takes ownership of an open descriptor (such as a memfd), with a name for messages. It serves
  /// parts that are not aligned as well, so it must not be O_DIRECT unless every request is
  /// aligned.
  static File Adopt(UniqueFd fd, std::string name, Bytes alignment);
  /// Makes a file in memory, for simulated drives: gone with the object. Errors: of memfd_create.
  static Result<File> InMemory(std::string name, Bytes alignment);

  /// Reserves [0, size) on the drive (fallocate), so that no later write runs out of space, but
  /// where writes go to new blocks (btrfs, reflinks); what is reserved is left alone. No request
  /// may be under way. Errors: kOutOfSpace with the free space and what is needed.
  Status Allocate(Bytes size);
  Result<Bytes> Size() const;

  int fd() const { return fd_.get(); }
  /// Serves unaligned parts through the page cache: a second descriptor without O_DIRECT, or fd()
  /// if that already has no O_DIRECT.
  int buffered_fd() const { return buffered_fd_.valid() ? buffered_fd_.get() : fd_.get(); }
  const std::string& path() const { return path_; }
  /// The bytes of a file in memory as of the last Allocate; empty for others.
  std::span<std::byte> memory() const { return {memory_.data(), memory_bytes_.value}; }
  /// A request goes to the drive without a copy if its offset, length and buffer address are
  /// multiples of this (STATX_DIOALIGN, else BLKSSZGET of the device, else 4096). 1 for a file
  /// opened without O_DIRECT.
  Bytes alignment() const { return alignment_; }

 private:
  /// Opens an existing file, both with and without O_DIRECT if `options` ask for that.
  static Result<File> OpenBoth(const std::string& path, const OpenOptions& options);
  static File Of(UnsharedFd fd, std::string name, Bytes alignment);
  Status Reserve(Bytes size);

  UnsharedFd fd_;
  UnsharedFd buffered_fd_;
  std::string path_;
  Bytes alignment_ = 1_B;
  bool in_memory_ = false;
  Mapping memory_;
  Bytes memory_bytes_;
};

}  // namespace penstock::aio
