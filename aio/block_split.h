// How a request is cut into blocks. Pure.
//
// What a block of a request looks like follows from its beginning alone, so a request needs no list
// of its blocks.
#pragma once

#include "aio/aio.h"
#include "base/units.h"

namespace penstock::aio {

struct BlockPart {
  Bytes size;
  bool buffered = false;  ///< through the page cache, at any alignment
};

/// The block of `request` that begins `begin` bytes into it, of at most `block_size` (but at least
/// one unit of the file's alignment). An aligned request and the whole pages in the middle of an
/// unaligned one go to the drive directly, what is left is buffered; a sync is one empty block.
/// Precondition: `begin` is the end of the block before, and not the end of a read or write.
BlockPart BlockAt(const Request& request, Bytes begin, Bytes block_size);

}  // namespace penstock::aio
