// TileStore and commits: making one, and going on from one.
#include <array>

#include "base/check.h"
#include "base/for_each_index.h"
#include "offload/tile_store.h"

namespace penstock::offload {

Status TileStore::WriteHomeParts(std::vector<CommittedTile>& committed) {
  std::vector<aio::Ticket> tickets;
  const auto submit = [&](Part part, TileId tile, int slot, std::span<std::byte> buffer) {
    if (buffer.empty()) return;
    tickets.push_back(file_.Submit({.part = part,
                                    .tile = tile,
                                    .slot = slot,
                                    .operation = aio::Operation::kWrite,
                                    .buffer = buffer,
                                    .priority = aio::Priority::kWriteBack}));
  };
  for (const TileId tile : layout_.Tiles()) {
    CommittedTile now;
    bool changed = false;
    {
      // Nobody else changes the tile's contents, place or version until an update begins.
      MutexLock lock(mutex_);
      Tile& entry = At(tile);
      changed = entry.committed_version != policy_.updates().version(tile);
      if (changed) entry.slot = file_.WriteSlot(tile);
      now = {.version = policy_.updates().version(tile),
             .checksums = entry.checksums,
             .slot = static_cast<uint32_t>(entry.slot)};
    }
    const auto slot = static_cast<int>(now.slot);
    if (changed) {
      submit(Part::kWeight, tile, slot, home_weights_[Index(tile)]);
      submit(Part::kRecord, tile, slot, home_records_[Index(tile)]);
    }
    committed.push_back(now);
  }
  return aio::WaitAll(tickets);
}

Status TileStore::Commit(CommitRecord record, const std::function<Status()>& first) {
  {
    MutexLock lock(mutex_);
    WaitUntilSettled();
    PENSTOCK_TRY(failure_);
  }
  Status committed = MakeCommit(std::move(record), first);
  MutexLock lock(mutex_);
  // Whether the drive holds this commit or the one before is not known any more: nothing may be
  // written.
  if (!committed.ok()) {
    FailLocked(committed.error());
    return committed;
  }
  for (const TileId tile : layout_.Tiles()) {
    At(tile).committed_version = policy_.updates().version(tile);
  }
  return {};
}

Status TileStore::MakeCommit(CommitRecord record, const std::function<Status()>& first) {
  PENSTOCK_TRY(first());
  PENSTOCK_TRY(WriteHomeParts(record.tiles));
  // Training reads on beside it, and may have found a part of this very version damaged.
  return file_.Commit(std::move(record), [this] {
    MutexLock lock(mutex_);
    return failure_;
  });
}

Status TileStore::Adopt(const CommitRecord& commit, int threads) {
  PENSTOCK_CHECK(commit.tiles.size() == layout_.tiles.size());
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < tiles_.size(); ++i) {
      const CommittedTile& committed = commit.tiles[i];
      tiles_[i].slot = static_cast<int>(committed.slot);
      tiles_[i].checksums = committed.checksums;
      tiles_[i].committed_version = committed.version;
    }
    policy_.Reset(VersionOf(layout_, commit));
  }
  return ReadHomeParts(commit, threads);
}

/// A tile is hashed as soon as it was read, while the drives read those behind it.
Status TileStore::ReadHomeParts(const CommitRecord& commit, int threads) {
  std::vector<std::array<aio::Ticket, 2>> reads;
  for (const TileId tile : layout_.Tiles()) {
    reads.push_back({ReadHome(Part::kWeight, tile, commit), ReadHome(Part::kRecord, tile, commit)});
  }
  Status verified = ForEachIndex(reads.size(), threads, [&](size_t i) -> Status {
    for (const aio::Ticket& read : reads[i]) {
      if (read.valid()) PENSTOCK_TRY(read.Wait());
    }
    return VerifyHome(TileId{static_cast<uint32_t>(i)}, commit.tiles[i]);
  });
  // After a failure, too, the drives have stopped writing into the homes when this returns.
  for (const auto& tile : reads) {
    for (const aio::Ticket& read : tile) {
      if (read.valid()) static_cast<void>(read.Wait());
    }
  }
  return verified;
}

aio::Ticket TileStore::ReadHome(Part part, TileId tile, const CommitRecord& commit) {
  const auto& homes = part == Part::kWeight ? home_weights_ : home_records_;
  if (homes[Index(tile)].empty()) return {};
  return file_.Submit({.part = part,
                       .tile = tile,
                       .slot = static_cast<int>(commit.tiles[Index(tile)].slot),
                       .operation = aio::Operation::kRead,
                       .buffer = homes[Index(tile)],
                       .priority = aio::Priority::kStateRead});
}

Status TileStore::VerifyHome(TileId tile, const CommittedTile& committed) const {
  const uint64_t seed = TileSeed(file_.uuid(), layout_, tile, committed.version);
  const auto damaged = [&](Part part) {
    return DamagedAt(part, tile, committed.version, static_cast<int>(committed.slot));
  };
  if (!WeightOnDrive(tile) &&
      WeightChecksum(seed, home_weights_[Index(tile)]) != committed.checksums.weight) {
    return damaged(Part::kWeight);
  }
  if (!RecordOnDrive(tile) && RecordChecksum(seed, layout_, tile, home_records_[Index(tile)]) !=
                                  committed.checksums.record) {
    return damaged(Part::kRecord);
  }
  return {};
}

}  // namespace penstock::offload
