// The host side of offloading: brings tiles from the drive into host memory and back, in time.
//
// Tiles live on the drive or, as many as there is room for, in host memory. Only the store knows
// where each version of each tile is: in its home in host memory, in a block that caches it, on the
// drive (in which slot), or in flight. offload/tile_policy.h decides what is read when, and what is
// evicted; the store has the blocks, the I/O and the lock. It serves two users at once:
//   - the thread that feeds the device pins weights in the order of the schedule; the weights that
//     the schedule names next are read ahead as far as blocks allow;
//   - optimizer threads take tiles whose update has begun, the one needed soonest first, with
//     weight and record in host memory (they are read ahead too), and hand them back updated; the
//     store writes them. Both get leases (offload/tile_leases.h).
// Optimizer threads also compare each weight that was read for the device with its checksum, where
// its update, which does the same, comes later: nothing is pinned before.
// A tile counts one version for each update. A weight pinned after its BeginUpdate is the new one.
//
// Weights are taken before records, and updates that have not begun never hold all weight blocks,
// so that neither user can wait for the other in a circle. Weights that live in host memory have no
// pins: a tile's update may begin only when the device has read the weights it was given.
//
// Failure: the first failed read, write, checksum or filling is final; every call and waiter gets
// it.
// Threads: all functions from any thread; PinWeights, SetTime, SetSchedule, PrepareUpdates, Adopt
// and Drain from one thread at a time, Commit possibly from another one. Owns no threads;
// completions run on the I/O engines'.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aio/aio.h"
#include "base/ledger.h"
#include "base/mutex.h"
#include "base/result.h"
#include "offload/checksum.h"
#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "offload/tile_leases.h"
#include "offload/tile_policy.h"

namespace penstock::offload {

struct TileStoreOptions {
  Tier weight_home = Tier::kNvme;  ///< kHost or kNvme
  Tier record_home = Tier::kNvme;
  /// This many first tiles of HostTileOrder (offload/tile_spread.h) keep in host memory the parts
  /// whose home is nvme for the others.
  size_t host_tiles = 0;
  size_t weight_blocks = 2;  ///< blocks of the largest tile for weights at home on nvme: 2 or more
  size_t record_blocks = 1;  ///< the same for records: 1 or more
  bool verify_checksums = true;
  int hash_threads = 1;  ///< threads that hash a commit's tiles in host memory
  uint64_t passes = 1;   ///< passes of an update; see offload/update_queue.h
  /// Told of each tile of host memory that a commit has hashed or written; any thread. If empty,
  /// nothing is told.
  std::function<void()> progressed = {};
};

/// What the policy of a store with these options goes by.
TilePolicyOptions PolicyOptions(const ShardLayout& layout, const TileStoreOptions& options);

class CommitVerifier;

/// Each update compares another one in this many of the tiles in host memory with what the previous
/// update left.
inline constexpr uint64_t kHomeTilesPerComparison = 64;

class TileStore {
 public:
  /// `schedule` and `file` outlive the store.
  TileStore(const ShardLayout& layout, const Schedule& schedule, const TileStoreOptions& options,
            Slab& slab, StateFile& file);
  /// Cancels I/O that the drives do not have yet, including write-backs that no commit names, and
  /// waits for the rest. No weight may be pinned and no update taken.
  ~TileStore();

  /// Returns the memory in which weights lie whenever they are pinned, in at most two parts: what
  /// copies to a device read.
  const std::vector<std::span<std::byte>>& weight_memory() const { return weight_memory_; }
  /// Returns the memory of blocks, which steps read into and write from; parts may be empty.
  std::vector<std::span<std::byte>> block_memory() const EXCLUDES(mutex_);
  /// Returns that and the memory of homes, which commits write from.
  std::vector<std::span<std::byte>> state_memory() const EXCLUDES(mutex_);

  /// Sets a callback for when TryTakeRead or TryTakeUpdate can return more tiles (their number is
  /// passed), or has failed. It is called with the store's mutex held.
  void OnWork(std::function<void(size_t tiles)> callback) EXCLUDES(mutex_);

  /// Sets version 0 of a tile: `fill` writes both parts into zeroed memory. Before the first
  /// SetTime; several threads may each set a tile.
  Status FillTile(
      TileId tile,
      const std::function<Status(std::span<std::byte> weight, std::span<std::byte> record)>& fill)
      EXCLUDES(mutex_);

  /// Instead of FillTile: takes every tile in the version that `commit`, of this file, names. Parts
  /// in host memory are read, and verified by this many threads. Errors, of the first tile that has
  /// one: those of reads; kCorruption.
  Status Adopt(const CommitRecord& commit, int threads = 1) EXCLUDES(mutex_);

  /// Sets the schedule's clock: everything before `now` has been pinned. Starts reads.
  void SetTime(uint64_t now) EXCLUDES(mutex_);
  /// Between steps: gives the next steps another schedule of the same modules, which outlives the
  /// store. The clock starts over at 0. Updates that have begun continue; homes stay what they are.
  void SetSchedule(const Schedule& schedule) EXCLUDES(mutex_);
  /// Says that the step that begins at this time is the last, and its update the last update:
  /// nothing is read ahead beyond them.
  void EndAfterThisStep() EXCLUDES(mutex_);
  /// Returns weights of the current version, verified: the weight of the first of `tiles`, for
  /// which it waits, and those of the tiles behind it that are there, up to `most` bytes in all.
  /// Somebody has to take reads meanwhile. A tile that the schedule does not name for now comes
  /// before all tiles that it names. Precondition: `tiles` is not empty.
  Result<PinnedWeights> PinWeights(IdRange<TileId> tiles, Bytes most) EXCLUDES(mutex_);
  /// Returns a weight to compare with its checksum, that which was read first.
  std::optional<ReadWeight> TryTakeRead() EXCLUDES(mutex_);
  /// Ends that: the device may have the weight if it hashes to what was expected; if not, the store
  /// fails.
  void FinishRead(const ReadWeight& read, uint64_t found) EXCLUDES(mutex_);

  /// Call this before the first BeginUpdate after a commit: without a second slot, the commit ends
  /// here.
  Status PrepareUpdates() EXCLUDES(mutex_);
  /// Lets one more update of the tile be taken. Precondition: the one before is finished (not
  /// necessarily written), and every other tile has begun that one.
  void BeginUpdate(TileId tile) EXCLUDES(mutex_);
  /// The same for every tile, once the updates before are finished: waits for those of tiles that
  /// were not pinned since.
  void BeginUpdates() EXCLUDES(mutex_);
  /// With two passes: begins the first pass of every tile, as BeginUpdates does the second, and
  /// waits until each has ended.
  Status MakeFirstPass() EXCLUDES(mutex_);
  /// Returns the tile needed soonest of those whose update has begun and that are in memory.
  std::optional<TileUpdate> TryTakeUpdate() EXCLUDES(mutex_);
  /// Ends the first pass of a tile, and its lease. The parts are as they were, and intact.
  void FinishFirstPass(TileUpdate& update) EXCLUDES(mutex_);
  /// Ends the update of a tile, and its lease; `after` are the checksums of its new contents.
  /// Starts the write-back.
  void FinishUpdate(TileUpdate& update, const TileChecksums& after) EXCLUDES(mutex_);
  /// Fails the store: the parts as they were read hash to `found`, which is not what was expected.
  void FailDamaged(const TileUpdate& update, const TileChecksums& found) EXCLUDES(mutex_);

  /// Waits until every begun update is finished and written.
  Status Drain() EXCLUDES(mutex_);
  /// Waits until every begun update is written, runs `first`, and makes the state durable: parts
  /// that live in host memory are hashed and written, then the record. With a `verifier`, all that
  /// the record names is then read back; see StateFile::Commit. Meanwhile everything but
  /// PrepareUpdates, BeginUpdate, FillTile, Adopt and another Commit may be called. A failure, also
  /// one of `first`, fails the store.
  Status Commit(CommitRecord record, const std::function<Status()>& first,
                CommitVerifier* verifier = nullptr) EXCLUDES(mutex_);

  /// Waits until every begun update is written, and has `read` look at both parts of the tile as
  /// they are then. Not while FillTile or BeginUpdate are called. Takes memory for the parts that
  /// live on the drive until it returns. Errors: of reads; kCorruption; of `read`.
  Status ReadTile(TileId tile, const std::function<Status(std::span<const std::byte> weight,
                                                          std::span<const std::byte> record)>& read)
      EXCLUDES(mutex_);

  /// Returns the number of updates that every tile that is not frozen has begun.
  uint64_t version() const EXCLUDES(mutex_);
  uint64_t evictions() const EXCLUDES(mutex_);
  uint64_t updates_finished() const EXCLUDES(mutex_);
  /// Returns the bytes of updated tiles that the drives have, without those that FillTile wrote.
  uint64_t written_back() const EXCLUDES(mutex_);

 private:
  friend class PinnedWeights;
  friend class UpdateLease;

  TileStore(const ShardLayout& layout, const Schedule& schedule, const TileStoreOptions& options,
            const TilePolicyOptions& policy, Slab& slab, StateFile& file);

  struct Tile {
    int slot = 0;             ///< slot of its version on the drive (parts at home there)
    TileChecksums checksums;  ///< checksums of that version
    std::optional<uint64_t> committed_version;
    BlockLease weight;            ///< valid while the weight is in a block
    BlockLease record;            ///< the same of the record
    bool weight_verified = true;  ///< false: read from the drive, and not compared with `checksums`
  };
  bool WeightOnDrive(TileId tile) const { return homes_[Index(tile)].weight_on_drive; }
  bool RecordOnDrive(TileId tile) const { return homes_[Index(tile)].record_on_drive; }
  Tile& At(TileId tile) REQUIRES(mutex_) { return tiles_[Index(tile)]; }
  std::span<std::byte> WeightOf(TileId tile) REQUIRES(mutex_);
  std::span<std::byte> RecordOf(TileId tile) REQUIRES(mutex_);

  /// Carries out what the policy decided in an event, and wakes whom it names.
  void Advance() REQUIRES(mutex_);
  void CarryOut(const TileAction& action) REQUIRES(mutex_);
  void StartWrites(TileId tile) REQUIRES(mutex_);
  void StartRead(Part part, TileId tile, aio::Priority priority) REQUIRES(mutex_);
  void StartWrite(Part part, TileId tile, void (TilePolicy::*done)(TileId)) REQUIRES(mutex_);
  void Submit(PartRequest request, std::function<void()> done) REQUIRES(mutex_);
  void FailLocked(const Error& error) REQUIRES(mutex_);
  Status AwaitPin(TileId tile) REQUIRES(mutex_);
  /// What follows when a weight was read.
  void WeightArrived(TileId tile) REQUIRES(mutex_);
  PinnedWeights LeaseOf(IdRange<TileId> tiles, std::vector<std::span<const std::byte>> weights);
  void Unpin(IdRange<TileId> tiles) EXCLUDES(mutex_);
  void GiveBack(TileId tile) EXCLUDES(mutex_);
  Error DamagedAt(Part part, TileId tile, uint64_t version, int slot) const;
  void WaitUntilSettled() REQUIRES(mutex_);
  void DrainLocked() REQUIRES(mutex_);
  Status MakeCommit(CommitRecord record, CommitVerifier* verifier) EXCLUDES(mutex_);
  Status ReadHomeParts(const CommitRecord& commit, int threads);
  aio::Ticket ReadHome(Part part, TileId tile, const CommitRecord& commit);
  /// What a commit names, and which of these tiles the commit before does not name.
  struct TilesToCommit {
    std::vector<CommittedTile> tiles;
    std::vector<bool> changed;
  };
  TilesToCommit PlaceTiles() EXCLUDES(mutex_);
  Status WriteHomeParts(const TilesToCommit& commit);
  using Damaged = std::function<Error(Part part, TileId tile, const CommittedTile&)>;
  Status CheckHome(TileId tile, const CommittedTile& committed, const Damaged& damaged) const;
  Status CheckHomeParts(const std::vector<CommittedTile>& tiles, const Damaged& damaged) const;
  bool ComparesHome(TileId tile, uint64_t version) const;

  const ShardLayout& layout_;
  const TileStoreOptions options_;
  const std::vector<TileHome> homes_;
  StateFile& file_;

  mutable Mutex mutex_;
  CondVar can_pin_;   ///< the weight for PinWeights has arrived
  CondVar settled_;   ///< every update is finished and written
  CondVar can_fill_;  ///< a block may be free for FillTile
  CondVar idle_;      ///< no request is in flight
  std::function<void(size_t)> on_work_ GUARDED_BY(mutex_);
  BlockPool weight_blocks_ GUARDED_BY(mutex_);
  BlockPool record_blocks_ GUARDED_BY(mutex_);
  // For each tile, its weight in memory; empty if it is on the drive.
  std::vector<std::span<std::byte>> home_weights_;
  std::vector<std::span<std::byte>> home_records_;
  std::vector<std::span<std::byte>> weight_memory_;
  std::vector<std::span<std::byte>> home_memory_;  ///< each of one piece, weights and records
  std::vector<Tile> tiles_ GUARDED_BY(mutex_);
  Status failure_ GUARDED_BY(mutex_);
  const Schedule* schedule_ GUARDED_BY(mutex_);
  TilePolicy policy_ GUARDED_BY(mutex_);
  std::deque<TileId> arrived_ GUARDED_BY(mutex_);  ///< tiles for TryTakeRead, in this order
  size_t requests_ GUARDED_BY(mutex_) = 0;         ///< I/O requests in flight
  uint64_t finished_ GUARDED_BY(mutex_) = 0;
  uint64_t written_back_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock::offload
