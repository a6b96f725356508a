#include "aio/block_split.h"

#include <algorithm>
#include <cstdint>

namespace penstock::aio {
namespace {

/// Direct blocks begin on multiples of the file's alignment, also where that is no divisor of the
/// block size.
Bytes DirectBlockSize(Bytes block_size, Bytes alignment) {
  return std::max(alignment, alignment * (block_size / alignment));
}

/// The file offsets between which an unaligned request goes to the drive directly: whole pages, if
/// its address allows it.
struct DirectRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

DirectRange DirectRangeOf(const Request& request) {
  const uint64_t alignment = request.file->alignment().value;
  const auto address = reinterpret_cast<uintptr_t>(request.buffer.data());
  if (address % alignment != request.offset.value % alignment) return {};
  const Bytes page = AlignUp(4_KiB, request.file->alignment());
  const Bytes end{request.offset.value + request.buffer.size()};
  return {.begin = AlignUp(Bytes{request.offset.value}, page).value,
          .end = (page * (end / page)).value};
}

bool IsAligned(const Request& request) {
  const uint64_t alignment = request.file->alignment().value;
  const auto address = reinterpret_cast<uintptr_t>(request.buffer.data());
  return request.offset.value % alignment == 0 && request.buffer.size() % alignment == 0 &&
         address % alignment == 0;
}

}  // namespace

BlockPart BlockAt(const Request& request, Bytes begin, Bytes block_size) {
  const Bytes rest = Bytes{request.buffer.size()} - begin;
  const Bytes direct_size = DirectBlockSize(block_size, request.file->alignment());
  if (IsAligned(request)) return {.size = std::min(rest, direct_size)};

  const uint64_t position = request.offset.value + begin.value;
  const DirectRange direct = DirectRangeOf(request);
  if (position >= direct.begin && position < direct.end) {
    return {.size = std::min(Bytes{direct.end - position}, direct_size)};
  }
  const bool is_head = direct.begin < direct.end && position < direct.begin;
  const Bytes part = is_head ? Bytes{direct.begin - position} : rest;
  return {.size = std::min(part, block_size), .buffered = true};
}

}  // namespace penstock::aio
