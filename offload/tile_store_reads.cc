// TileStore and readers of whole tiles, between updates: exports, and states for a caller.
#include <array>

#include "base/mapping.h"
#include "offload/tile_store.h"

namespace penstock::offload {

Status TileStore::ReadTile(TileId tile,
                           const std::function<Status(std::span<const std::byte> weight,
                                                      std::span<const std::byte> record)>& read) {
  TileChecksums expected;
  uint64_t version = 0;
  int slot = 0;
  {
    MutexLock lock(mutex_);
    DrainLocked();
    PENSTOCK_TRY(failure_);
    version = policy_.updates().version(tile);
    expected = At(tile).checksums;
    slot = At(tile).slot;
  }
  const auto fail = [this](const Error& error) -> Status {
    MutexLock lock(mutex_);
    FailLocked(error);
    return failure_;
  };
  struct Piece {
    Part part;
    std::span<std::byte> bytes;  ///< bytes at home; `room` if they are on the drive
    Bytes size;
    Mapping room = {};
  };
  std::array<Piece, 2> pieces{
      {{Part::kWeight, home_weights_[Index(tile)], layout_.WeightBytes(tile)},
       {Part::kRecord, home_records_[Index(tile)], layout_.RecordBytes(tile)}}};
  // All memory is there before the first read: none is given up while a drive writes into it.
  for (Piece& piece : pieces) {
    if (!piece.bytes.empty() || piece.size.value == 0) continue;
    PENSTOCK_ASSIGN(piece.room, Mapping::Create(piece.size));
    piece.bytes = {piece.room.data(), piece.size.value};
  }
  std::vector<aio::Ticket> tickets;
  tickets.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.room.size().value == 0) continue;
    tickets.push_back(file_.Submit({.part = piece.part,
                                    .tile = tile,
                                    .slot = slot,
                                    .operation = aio::Operation::kRead,
                                    .buffer = piece.bytes,
                                    .priority = aio::Priority::kStateRead,
                                    .version = version}));
  }
  if (Status done = aio::WaitAll(tickets); !done.ok()) return fail(done.error());
  const auto& [weight, record] = pieces;
  const TileChecksums found =
      ChecksumsOf(file_.uuid(), layout_, tile, version, weight.bytes, record.bytes);
  if (found.weight != expected.weight) return fail(DamagedAt(Part::kWeight, tile, version, slot));
  if (found.record != expected.record) return fail(DamagedAt(Part::kRecord, tile, version, slot));
  return read(weight.bytes, record.bytes);
}

}  // namespace penstock::offload
