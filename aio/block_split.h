// Cuts requests into blocks. Pure.
//
// A BlockPlan holds what all blocks of a request have in common. A block follows from the plan and
// the block's beginning alone, so a request needs no list of its blocks.
#pragma once

#include "aio/aio.h"
#include "base/units.h"

namespace penstock::aio {

struct BlockPlan {
  Bytes size;          ///< the request's size
  Bytes direct_begin;  ///< begin of the bytes that go to the drive directly;
  Bytes direct_end;    ///< their end; the rest goes through the page cache
  Bytes direct_block;  ///< max bytes of a block, a multiple of the file's alignment
  Bytes buffered_block;
};

/// An aligned request is direct throughout. Of an unaligned request the whole pages in the middle
/// are direct, if its address allows it. Direct blocks hold at most `block_size`, but at least one
/// unit of the file's alignment.
BlockPlan PlanBlocks(const Request& request, Bytes block_size);

struct BlockPart {
  Bytes size;
  bool buffered = false;  ///< through the page cache, at any alignment
};

/// Returns the block that begins `begin` bytes into the request; a sync is one empty block.
/// Precondition: `begin` is the end of the block before, and not the end of a read or write.
BlockPart BlockAt(const BlockPlan& plan, Bytes begin);

}  // namespace penstock::aio
