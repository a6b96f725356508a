#include "aio/block_transfer.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace penstock::aio {
namespace {

int64_t Call(const BlockOperation& block) {
  const iovec part = {block.data.data(), block.data.size()};
  const auto offset = static_cast<off_t>(block.offset.value);
  switch (block.operation) {
    case Operation::kRead:
      return ::preadv2(block.fd, &part, 1, offset, 0);
    case Operation::kWrite:
      return ::pwritev2(block.fd, &part, 1, offset, 0);
    case Operation::kSync:
      return ::fdatasync(block.fd);
  }
  return -1;
}

/// Copies within memory, without the kernel, which goes page by page and is slower. Whether the
/// block lies within the file; if it does not, nothing was copied.
bool CopyWithin(const BlockOperation& block) {
  const size_t size = block.data.size();
  const uint64_t offset = block.offset.value;
  if (offset > block.memory.size() || size > block.memory.size() - offset) return false;
  std::byte* const place = block.memory.data() + offset;
  if (block.operation == Operation::kRead) {
    std::memcpy(block.data.data(), place, size);
  } else {
    std::memcpy(place, block.data.data(), size);
  }
  return true;
}

}  // namespace

int64_t Transfer(const BlockOperation& block) {
  const bool moves = block.operation != Operation::kSync && !block.memory.empty();
  if (moves && CopyWithin(block)) return static_cast<int64_t>(block.data.size());
  const int64_t result = Call(block);
  return result < 0 ? -errno : result;
}

}  // namespace penstock::aio
