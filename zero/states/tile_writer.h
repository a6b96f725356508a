// Writes tiles whose home is the device to the state. Copies off the device, writes and checksums
// overlap: while one tile is copied, those before it are written and hashed.
//
// The tiles go through blocks of host memory, one after the other and again from the first, so that
// the drive is as far behind the device as there are blocks. One block is enough.
//
// Threads: one, which also feeds the stream; others that it starts share the checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "aio/aio.h"
#include "base/result.h"
#include "device/device.h"
#include "offload/commit_record.h"
#include "offload/layout.h"
#include "offload/state_file.h"

namespace penstock::zero {

/// Host memory for a tile on its way between device and drive: room for the largest one's parts.
struct TileBlock {
  std::span<std::byte> weight;
  std::span<std::byte> record;

  /// Returns the part of it that a tile takes.
  TileBlock Of(const offload::ShardLayout& layout, offload::TileId tile) const {
    return {.weight = weight.first(layout.WeightBytes(tile).value),
            .record = record.first(layout.RecordBytes(tile).value)};
  }
};

class TileWriter {
 public:
  /// A tile on the device, and where its place in the commit goes.
  struct Source {
    offload::TileId tile{};
    uint64_t version = 0;
    const std::byte* weight = nullptr;
    const std::byte* record = nullptr;
    offload::CommittedTile* committed = nullptr;
  };

  /// All arguments outlive it. There is a block. `threads`: that hash.
  TileWriter(const offload::ShardLayout& layout, offload::StateFile& file, device::Stream& stream,
             std::span<const TileBlock> blocks, int threads)
      : layout_(layout),
        file_(file),
        stream_(stream),
        blocks_(blocks),
        threads_(threads),
        writes_(blocks.size()) {}
  /// Waits for what is under way, in both directions.
  ~TileWriter();
  TileWriter(const TileWriter&) = delete;
  TileWriter& operator=(const TileWriter&) = delete;

  /// Begins to write a tile to a slot that no commit protects; waits for a block. Errors: of an
  /// earlier write.
  Status Write(const Source& source);
  /// Waits for all tiles; their places in the commit are known then. Errors: of the stream and of
  /// writes, after which nothing may be committed.
  Status Finish();

 private:
  struct Copy {
    Source source;
    size_t block = 0;
    device::Event ended;
  };
  /// Writes and hashes the tiles that were copied first, so many of them.
  Status WriteOldest(size_t count);
  void Submit(const Copy& copy);

  const offload::ShardLayout& layout_;
  offload::StateFile& file_;
  device::Stream& stream_;
  const std::span<const TileBlock> blocks_;
  const int threads_;
  std::vector<std::vector<aio::Ticket>> writes_;  ///< running writes of each block
  std::deque<Copy> copies_;                       ///< off the device, oldest first
  size_t next_ = 0;                               ///< block
};

}  // namespace penstock::zero
