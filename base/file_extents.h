// Which parts of a file have blocks on their drive, and which of these are shared with other files.
//
// Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

/// A part of a file.
struct FileRange {
  FileOffset begin;
  Bytes size;

  bool operator==(const FileRange&) const = default;
};

/// What the file system says of a file's blocks (FIEMAP), in their order. Reserved blocks that were
/// never written count as blocks.
struct FileExtents {
  std::vector<FileRange> reserved;  ///< adjacent ones are one
  Bytes shared;  ///< bytes of these that copies share (reflinks), so a write takes new blocks
};

/// Errors: kUnavailable if the file system does not tell; of the call.
Result<FileExtents> ReadExtents(int fd);

/// Returns the parts of the first `size` bytes of a file without blocks.
std::vector<FileRange> HolesIn(const FileExtents& extents, Bytes size);

}  // namespace penstock
