// Decides what the tile store does: which tile is read, which copy is evicted for it, which update
// comes next, and which waits are woken.
//
// Pure: it has no threads, clock, memory or I/O, so that tests and `sim/` run it in virtual time.
// The owner reports events by the calls below, executes what TakeActions returns, in that order,
// and wakes what TakeWakes names. The policy counts blocks; the owner has them.
//
// What it decides:
//   - Weights for the device are read in the order of the schedule, as far ahead as blocks allow.
//   - Of the unused copies, the one needed furthest in the future is evicted (Belady's MIN, because
//     the future is known), and only for something that is needed sooner.
//   - Updates that have begun are loaded before those that have not (offload/update_queue.h). The
//     latter hold at most `ahead_limit` weight blocks, so that the device always finds one.
//   - Requests of the device out of order come before everything that is planned. If the device
//     waits for an update, a record that was read for an update that has not begun is evicted, too:
//     that update begins only after what the device computes next.
//
// Cost: a call takes O(log tiles), and as much again for each read or load that it starts. SetTime
// also looks at each tile of the modules whose uses it passes; the first one and SetSchedule sort
// all tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/update_queue.h"

namespace penstock::offload {

/// Which parts of a tile live on the drive; the others live in host memory.
struct TileHome {
  bool weight_on_drive = true;
  bool record_on_drive = true;
};

struct TilePolicyOptions {
  std::vector<TileHome> homes;  ///< home of each tile
  size_t weight_blocks = 2;     ///< blocks for weights on the drive
  size_t record_blocks = 1;
  size_t ahead_limit = 1;  ///< max weight blocks for updates that have not begun
  uint64_t passes = 1;     ///< passes of an update: 1 or 2; see offload/update_queue.h
};

struct TileAction {
  enum class Kind : uint8_t {
    kEvictWeight,          ///< release the weight's block; its content is also on the drive
    kReadWeight,           ///< read the weight into a free block, for the device
    kReadWeightForUpdate,  ///< the same, for the optimizer
    kReadRecord,           ///< read the record into a free block
    kEvictRecord,          ///< release the record's block, which was read but not used
  };
  Kind kind{};
  TileId tile{};
};

/// Which refused requests can now succeed. Each is named once.
struct TileWakes {
  bool device = false;   ///< a refused TryPin would now succeed
  size_t updates = 0;    ///< number of tiles that TakeUpdate can now return
  bool settled = false;  ///< settled() has become true
  bool filling = false;  ///< a refused TryBeginFill may now find blocks
};

class TilePolicy {
 public:
  /// Borrows both.
  TilePolicy(const ShardLayout& layout, const Schedule& schedule, TilePolicyOptions options);

  // Filling, before the first SetTime. A tile's parts take blocks, are filled, and are written
  // back.
  /// Returns false if there are no blocks now; TakeWakes says when to try again.
  bool TryBeginFill(TileId tile);
  void FinishFill(TileId tile);
  /// Instead of filling: every tile that is updated has `version`, and no part that lives on the
  /// drive is in memory.
  void Reset(uint64_t version) { updates_.Reset(version); }

  // The device.
  /// Sets the time, in uses of the schedule (offload/schedule.h): everything before `now` has been
  /// pinned.
  void SetTime(uint64_t now);
  /// Between steps: gives the next steps another schedule (borrowed) of the same modules. Time
  /// starts over at 0. Updates that have begun continue, in the order of the new schedule.
  void SetSchedule(const Schedule& schedule);
  /// Says that the step that begins at this time is the last, and its update the last update:
  /// nothing is read ahead beyond them.
  void EndAfterThisStep();
  /// Pins the current weight of a tile. Returns true if it is in memory. Otherwise it is brought
  /// there, and TakeWakes says when to try again; one tile is waited for at a time. Any tile may be
  /// pinned at any time. A tile that the schedule does not name for now is *late*, and has
  /// precedence over everything.
  bool TryPin(TileId tile);
  /// Returns what TryPin would return.
  bool CanPin(TileId tile) const;
  void Unpin(TileId tile);

  // Updates.
  /// Lets one more update of the tile be taken, or one more pass. Preconditions: the one before is
  /// finished, and every other tile has begun that one.
  void Begin(TileId tile);
  /// Returns the tile needed soonest of those that can be updated now.
  std::optional<TileId> TakeUpdate();
  /// Takes back a tile that was taken and not updated: it is there to be taken again.
  void GiveBack(TileId tile) { updates_.GiveBack(tile); }
  /// Ends the first pass of a tile that was taken, which changed nothing. Its parts stay for the
  /// second, unless others wait for their room.
  void FinishFirstPass(TileId tile);
  /// Ends the update of a tile that was taken. Its parts that live on the drive are written back
  /// from now on, and keep their blocks until then.
  void FinishUpdate(TileId tile);
  /// While draining, new weights are not used: updates may take the blocks that the next step
  /// needs.
  void SetDraining(bool draining);

  // Completed I/O.
  void WeightRead(TileId tile);
  void RecordRead(TileId tile);
  void WeightWritten(TileId tile);
  void RecordWritten(TileId tile);

  /// Returns what is to be done since the last call; valid until the next call.
  const std::vector<TileAction>& TakeActions() {
    taken_.clear();
    taken_.swap(actions_);
    return taken_;
  }
  /// Returns which requests can succeed since the last call.
  TileWakes TakeWakes();

  const UpdateQueue& updates() const { return updates_; }
  /// Whether every update that was begun is finished and written back.
  bool settled() const { return updates_.unfinished() == 0 && writes_ == 0; }
  bool started() const { return started_; }
  uint64_t evictions() const { return evictions_; }

 private:
  /// A time of use and a tile's place in its module, as one number: what is needed later is larger.
  using Need = uint64_t;
  using Order = std::set<std::pair<Need, uint32_t>>;

  static constexpr uint64_t kNoEnd = std::numeric_limits<uint64_t>::max();

  struct NextUse {
    Need need = 0;
    bool by_update = false;  ///< otherwise by the device
  };
  enum class Copy : uint8_t { kNone, kReading, kThere };
  struct Tile {
    Copy weight = Copy::kNone;  ///< copy in a block; unused if the part is in host memory
    Copy record = Copy::kNone;
    bool weight_writing = false;
    bool update_pins = false;       ///< the update is one of `pins`
    bool ahead_pins = false;        ///< and it has not begun
    uint8_t writes = 0;             ///< write-backs under way
    uint32_t pins = 0;              ///< users that keep the weight's block in place
    bool updated = false;           ///< an update has begun since the weight was last pinned
    uint64_t next_fetch = 0;        ///< next time at which the weight is copied to the device
    std::optional<Need> by_device;  ///< its key in `by_device_`
    std::optional<Need> by_update;  ///< its key in `by_update_`
    std::optional<Need> wanted;     ///< its key in `wanted_`
    std::optional<Need> ahead;      ///< its key in `ahead_records_`
  };

  Tile& At(TileId tile) { return tiles_[Index(tile)]; }
  const Tile& At(TileId tile) const { return tiles_[Index(tile)]; }
  bool WeightOnDrive(TileId tile) const { return homes_[Index(tile)].weight_on_drive; }
  bool RecordOnDrive(TileId tile) const { return homes_[Index(tile)].record_on_drive; }
  ModuleId ModuleOf(TileId tile) const { return layout_.tile(tile).module; }
  uint64_t StepStart() const { return now_ - now_ % schedule_->length(); }
  /// Returns the need of the first tile used at a time; 0 is reserved for the most urgent.
  Need NeedAt(uint64_t time) const { return time * tiles_.size() + 1; }
  Need NeedAt(uint64_t time, TileId tile) const;
  Need PinNeed(TileId tile) const;
  NextUse NextUseOf(TileId tile) const;
  Need UpdateNeed(TileId tile, bool ahead) const;
  std::optional<Need> WaitingUpdateNeed() const;

  void Sort(TileId tile);
  void PassUses(uint64_t from, uint64_t to);
  bool TakeWeightBlock(Need need);
  bool MakeRoomForRecord(TileId tile, bool ahead);
  void Unload(TileId tile);
  void ReadWeight(TileId tile, TileAction::Kind kind);
  void Advance();
  void ServePin();
  void LoadUpdates();
  bool TryLoad(TileId tile, bool ahead);
  void ReadAhead();
  void BeginWrites(TileId tile);
  void EndWrite(TileId tile);

  const ShardLayout& layout_;
  const Schedule* schedule_;
  Fetches fetches_;
  const std::vector<TileHome> homes_;
  const size_t record_blocks_;
  const size_t ahead_limit_;
  size_t free_weight_blocks_;
  size_t free_record_blocks_;
  UpdateQueue updates_;
  std::vector<Tile> tiles_;
  // Unused copies, by when the device or an update needs them next. The device's need is never
  // overdue; an update may be late.
  Order by_device_;
  Order by_update_;
  Order wanted_;  ///< weights on the drive that are not in memory, by when the device needs them
  Order ahead_records_;  ///< loaded, of updates that have not begun, ordered by their need
  std::optional<TileId> pinning_;  ///< tile that the device waits for
  bool started_ = false;           ///< SetTime was called: there is something to read
  bool draining_ = false;
  uint64_t now_ = 0;
  uint64_t end_ = kNoEnd;  ///< time from which nothing is used
  size_t ahead_pins_ = 0;  ///< weight blocks held for updates that have not begun
  size_t writes_ = 0;      ///< write-backs under way
  uint64_t evictions_ = 0;
  std::vector<TileAction> actions_;
  std::vector<TileAction> taken_;
  // What TakeWakes did not name yet.
  bool device_waits_ = false;  ///< TryPin refused `pinning_`
  bool unsettled_ = false;     ///< an update or a write began
  bool filler_waits_ = false;  ///< TryBeginFill refused
  bool block_freed_ = false;   ///< a write ended since
  size_t announced_ = 0;       ///< number of named tiles of those that can be taken
};

}  // namespace penstock::offload
