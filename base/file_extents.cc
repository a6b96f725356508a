#include "base/file_extents.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <new>

namespace penstock {
namespace {

constexpr uint32_t kAtOnce = 256;  // extents of a call

void Add(const fiemap_extent& extent, FileExtents& extents) {
  const uint64_t begin = extent.fe_logical;
  std::vector<FileRange>& reserved = extents.reserved;
  const bool touches =
      !reserved.empty() && reserved.back().begin.value + reserved.back().size.value == begin;
  if (touches) {
    reserved.back().size += Bytes{extent.fe_length};
  } else {
    reserved.push_back({FileOffset{begin}, Bytes{extent.fe_length}});
  }
  if ((extent.fe_flags & FIEMAP_EXTENT_SHARED) != 0) extents.shared += Bytes{extent.fe_length};
}

}  // namespace

Result<FileExtents> ReadExtents(int fd) {
  FileExtents extents;
  // The kernel's request, with room for what it answers.
  alignas(fiemap) std::array<std::byte, sizeof(fiemap) + kAtOnce * sizeof(fiemap_extent)> memory{};
  uint64_t next = 0;
  while (true) {
    fiemap* const request = new (memory.data()) fiemap{};
    request->fm_start = next;
    request->fm_length = std::numeric_limits<uint64_t>::max() - next;
    request->fm_extent_count = kAtOnce;
    int result = 0;
    do {
      result = ::ioctl(fd, FS_IOC_FIEMAP, request);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOTTY || errno == EINVAL)) {
      return MakeError(ErrorCode::kUnavailable, "the file system does not tell a file's blocks");
    }
    if (result != 0) return ErrnoError(errno, "reading a file's blocks");
    const uint32_t found = std::min(request->fm_mapped_extents, kAtOnce);
    for (uint32_t i = 0; i < found; ++i) Add(request->fm_extents[i], extents);
    if (found == 0) return extents;
    const fiemap_extent& last = request->fm_extents[found - 1];
    if ((last.fe_flags & FIEMAP_EXTENT_LAST) != 0) return extents;
    next = last.fe_logical + last.fe_length;
  }
}

std::vector<FileRange> HolesIn(const FileExtents& extents, Bytes size) {
  std::vector<FileRange> holes;
  uint64_t at = 0;
  for (const FileRange& range : extents.reserved) {
    const uint64_t begin = std::min(range.begin.value, size.value);
    if (begin > at) holes.push_back({FileOffset{at}, Bytes{begin - at}});
    at = std::max(at, range.begin.value + range.size.value);
  }
  if (size.value > at) holes.push_back({FileOffset{at}, Bytes{size.value - at}});
  return holes;
}

}  // namespace penstock
