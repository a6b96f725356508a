#include "aio/block_split.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace penstock::aio {
namespace {

/// What the page cache holds as one.
Bytes PageSize() {
  static const Bytes size{static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))};
  return size;
}

/// Direct blocks begin on multiples of the file's alignment, also where that is no divisor of the
/// block size.
Bytes DirectBlockSize(Bytes block_size, Bytes alignment) {
  return std::max(alignment, alignment * (block_size / alignment));
}

/// The whole pages of an unaligned request.
void FindWholePages(const Request& request, BlockPlan& plan) {
  const Bytes page = AlignUp(std::max(PageSize(), 4_KiB), request.file->alignment());
  const Bytes begin{request.offset.value};
  const Bytes end = begin + plan.size;
  const Bytes first = AlignUp(begin, page);
  const Bytes last = page * (end / page);
  if (first >= last) return;
  plan.direct_begin = first - begin;
  plan.direct_end = last - begin;
}

}  // namespace

BlockPlan PlanBlocks(const Request& request, Bytes block_size) {
  const uint64_t alignment = request.file->alignment().value;
  const auto address = reinterpret_cast<uintptr_t>(request.buffer.data());
  BlockPlan plan = {.size = Bytes{request.buffer.size()},
                    .direct_block = DirectBlockSize(block_size, request.file->alignment()),
                    .buffered_block = block_size};
  if (address % alignment != request.offset.value % alignment) return plan;
  if (address % alignment == 0 && plan.size.value % alignment == 0) {
    plan.direct_end = plan.size;
  } else {
    FindWholePages(request, plan);
  }
  return plan;
}

BlockPart BlockAt(const BlockPlan& plan, Bytes begin) {
  if (begin < plan.direct_begin) {
    return {.size = std::min(plan.direct_begin - begin, plan.buffered_block), .buffered = true};
  }
  if (begin < plan.direct_end) {
    return {.size = std::min(plan.direct_end - begin, plan.direct_block)};
  }
  const Bytes rest = plan.size - begin;
  return {.size = std::min(rest, plan.buffered_block), .buffered = rest.value > 0};
}

}  // namespace penstock::aio
