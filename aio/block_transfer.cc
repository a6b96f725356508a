#include "aio/block_transfer.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace

int64_t Transfer(const BlockOperation& block) {
  const int64_t result = Call(block);
  return result < 0 ? -errno : result;
}

}  // namespace penstock::aio
