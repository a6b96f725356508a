// TileStore and commits: making one, and resuming from one.
#include <array>

#include "base/check.h"
#include "base/for_each_index.h"
#include "offload/commit_verifier.h"
#include "offload/tile_store.h"

namespace penstock::offload {

/// Nothing else changes a tile's contents, place or version until an update begins.
TileStore::TilesToCommit TileStore::PlaceTiles() {
  TilesToCommit commit;
  MutexLock lock(mutex_);
  for (const TileId tile : layout_.Tiles()) {
    Tile& entry = At(tile);
    const uint64_t version = policy_.updates().version(tile);
    const bool changed = entry.committed_version != version;
    if (changed) entry.slot = file_.WriteSlot(tile);
    commit.changed.push_back(changed);
    commit.tiles.push_back({.version = version,
                            .checksums = entry.checksums,
                            .slot = static_cast<uint32_t>(entry.slot)});
  }
  return commit;
}

/// They are hashed while the drives write them, also those that the commit before names: what is in
/// memory is what training works with.
Status TileStore::WriteHomeParts(const TilesToCommit& commit) {
  std::vector<aio::Ticket> tickets;
  const auto submit = [&](Part part, TileId tile, std::span<std::byte> buffer) {
    if (buffer.empty()) return;
    tickets.push_back(file_.Submit({.part = part,
                                    .tile = tile,
                                    .slot = static_cast<int>(commit.tiles[Index(tile)].slot),
                                    .operation = aio::Operation::kWrite,
                                    .buffer = buffer,
                                    .priority = aio::Priority::kWriteBack}));
  };
  for (const TileId tile : layout_.Tiles()) {
    if (!commit.changed[Index(tile)]) continue;
    submit(Part::kWeight, tile, home_weights_[Index(tile)]);
    submit(Part::kRecord, tile, home_records_[Index(tile)]);
  }
  Status intact;
  if (options_.verify_checksums) {
    intact = CheckHomeParts(commit.tiles,
                            [this](Part part, TileId tile, const CommittedTile& committed) {
                              return DamagedInMemory(layout_, part, tile, committed.version);
                            });
  }
  Status written;
  for (const aio::Ticket& ticket : tickets) {
    const Status outcome = ticket.Wait();
    if (written.ok()) written = outcome;
    if (options_.progressed) options_.progressed();
  }
  return written.ok() ? intact : written;
}

/// Compares what lives in host memory with its checksums, on several threads. Errors: what
/// `damaged` says of the first part that differs.
Status TileStore::CheckHomeParts(const std::vector<CommittedTile>& tiles,
                                 const Damaged& damaged) const {
  return ForEachIndex(tiles.size(), options_.hash_threads, [&](size_t i) {
    if (options_.progressed) options_.progressed();
    return CheckHome(TileId{static_cast<uint32_t>(i)}, tiles[i], damaged);
  });
}

Status TileStore::CheckHome(TileId tile, const CommittedTile& committed,
                            const Damaged& damaged) const {
  const uint64_t seed = TileSeed(file_.uuid(), layout_, tile, committed.version);
  const TileChecksums& expected = committed.checksums;
  if (!WeightOnDrive(tile) && WeightChecksum(seed, home_weights_[Index(tile)]) != expected.weight) {
    return damaged(Part::kWeight, tile, committed);
  }
  if (!RecordOnDrive(tile) &&
      RecordChecksum(seed, layout_, tile, home_records_[Index(tile)]) != expected.record) {
    return damaged(Part::kRecord, tile, committed);
  }
  return {};
}

Status TileStore::Commit(CommitRecord record, const std::function<Status()>& first,
                         CommitVerifier* verifier) {
  {
    MutexLock lock(mutex_);
    WaitUntilSettled();
    PENSTOCK_TRY(failure_);
  }
  Status committed = first();
  // Nothing was written of the state, and a smaller file may fit.
  if (!committed.ok() && committed.error().code == ErrorCode::kOutOfSpace) return committed;
  if (committed.ok()) committed = MakeCommit(std::move(record), verifier);
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

Status TileStore::MakeCommit(CommitRecord record, CommitVerifier* verifier) {
  TilesToCommit commit = PlaceTiles();
  PENSTOCK_TRY(WriteHomeParts(commit));
  record.tiles = std::move(commit.tiles);
  // Training reads on beside it, and may have found a part of this very version damaged.
  const auto still_good = [this] {
    MutexLock lock(mutex_);
    return failure_;
  };
  if (verifier == nullptr) return file_.Commit(std::move(record), still_good);
  return file_.Commit(std::move(record), still_good, [&](const CommitRecord& named) {
    return verifier->Verify(named.tiles,
                            [&](TileId tile, Part) { return commit.changed[Index(tile)]; });
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
  const Damaged damaged = [this](Part part, TileId tile, const CommittedTile& committed) {
    return DamagedAt(part, tile, committed.version, static_cast<int>(committed.slot));
  };
  Status verified = ForEachIndex(reads.size(), threads, [&](size_t i) -> Status {
    for (const aio::Ticket& read : reads[i]) {
      if (read.valid()) PENSTOCK_TRY(read.Wait());
    }
    return CheckHome(TileId{static_cast<uint32_t>(i)}, commit.tiles[i], damaged);
  });
  // Also after a failure, the drives no longer write into the homes when this returns.
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

}  // namespace penstock::offload
