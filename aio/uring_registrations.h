// The files and buffers that a ring knows beforehand, so that it need not look them up or pin them
// for every block.
//
// Not thread-safe: it belongs to the thread of its ring, which must outlive it. Memory and files
// belong to the caller.
#pragma once

#include <liburing.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

/// The most that the kernel takes as one registered buffer.
inline constexpr Bytes kMaxPiece = 1_GiB;

class UringRegistrations {
 public:
  /// Makes an empty table of files on a ring that has none.
  explicit UringRegistrations(io_uring* ring);

  /// Pins the memory, once. Returns a line that says how much. Errors: kUnavailable for a memlock
  /// limit that is too low, or a kernel that refuses.
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory);
  /// Puts the file that `fd` refers to now into the table if there is room; otherwise it is used
  /// like any other file.
  void AddFile(int fd);
  void RemoveFile(int fd);

  /// Its place in the table of files.
  std::optional<int> FileIndex(int fd) const;
  /// The registered piece that all of `data` lies in.
  std::optional<int> BufferIndex(std::span<const std::byte> data) const;

 private:
  io_uring* const ring_;
  std::vector<int> files_;     ///< indexed by registration, -1: free; empty: no table
  size_t files_end_ = 0;       ///< one past the last index in use
  std::vector<iovec> pieces_;  ///< sorted by address
};

}  // namespace penstock::aio
