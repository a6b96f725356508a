// Keeps which tiles are to be updated, and in which order.
//
// A tile's update is *begun* when its gradient is final, *loaded* when the states it works on are
// in host memory or on their way there, and *ready* when they have arrived. Loading is ordered by
// need: of the tiles whose update is begun, the one whose weight is needed soonest comes first.
// Only when all of these are loaded does loading run ahead, in the order in which updates will
// begin. So tiles that are loaded ahead never take room from tiles that are waited for.
//
// A rule may need two passes over all tiles: a first one that only reads, and the update. Each pass
// is begun, loaded and taken as an update is, and a tile is loaded for the second as it is for the
// next update. Every tile ends its first pass before one begins its second.
//
// A plain value: no I/O, no waiting, no locking. Every call costs O(log tiles), except SetSchedule
// and Reset, which sort them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "offload/schedule.h"

namespace penstock::offload {

class UpdateQueue {
 public:
  /// Makes a queue of this many tiles. The schedule (borrowed) names those that are updated; the
  /// others keep version 0. `passes`: of an update, 1 or 2.
  UpdateQueue(const Schedule& schedule, size_t tiles, uint64_t passes = 1);
  /// Gives every tile that is updated `version`.
  void Reset(uint64_t version);
  /// Continues in the orders of another schedule (borrowed) of the same tiles: begun, loaded and
  /// taken tiles stay so.
  void SetSchedule(const Schedule& schedule);

  /// Says that the next update of every tile is its last: nothing is loaded ahead for another.
  void EndAfterThisRound() { last_round_ = round_ + passes_ - 1; }

  /// The number of updates that every tile that is updated has begun, with all their passes.
  uint64_t round() const { return round_ / passes_; }
  /// Return the version that the tile has, and the one that it has or is to get.
  uint64_t version(TileId tile) const { return tiles_[Index(tile)].version / passes_; }
  uint64_t target(TileId tile) const {
    return (tiles_[Index(tile)].target + passes_ - 1) / passes_;
  }
  /// Whether the pass that the tile is in, or comes to next, only reads.
  bool in_first_pass(TileId tile) const {
    return passes_ == 2 && tiles_[Index(tile)].version % 2 == 0;
  }
  /// The number of updates, or of their passes, that are begun and not finished.
  size_t unfinished() const { return unfinished_; }
  /// Whether a tile whose update has begun is to be loaded.
  bool waiting() const { return unloaded_ > 0; }
  /// The number of such tiles.
  size_t unloaded() const { return unloaded_; }
  /// Returns the one needed soonest of those that are not held back.
  std::optional<TileId> FirstToLoad() const {
    if (waiting_.empty()) return std::nullopt;
    return schedule_->update_order[*waiting_.begin()];
  }
  /// The number of tiles that Take can give.
  size_t takeable() const { return takeable_.size(); }

  /// Begins an update, or a pass of one. Precondition: the tile's one before is finished.
  void Begin(TileId tile);

  struct Candidate {
    TileId tile{};
    bool ahead = false;  ///< the tile's update has not begun
  };
  /// Returns the tile to load next, until a tile is loaded, begun, held back or released. `urgent`
  /// comes before all others, if its update has begun and waits to be loaded.
  std::optional<Candidate> NextToLoad(std::optional<TileId> urgent = std::nullopt);
  void Loaded(TileId tile);
  /// Whether a tile is loaded for an update that has not begun.
  bool loaded_ahead(TileId tile) const { return tiles_[Index(tile)].ahead(); }
  /// Gives up what was loaded of such a tile: it has to be loaded again.
  void Unload(TileId tile);
  /// A tile that is held back is not loaded, because its last version is still being written. If
  /// its update has begun, it keeps its place: others that have begun pass it, but nothing is
  /// loaded ahead.
  void HoldBack(TileId tile);
  void LetGo(TileId tile);

  /// Sets whether a tile's states have arrived and are not in use.
  void SetReady(TileId tile, bool ready);
  /// Returns the tile needed soonest of those that are begun, loaded and ready. It is not given
  /// again.
  std::optional<TileId> Take();
  /// Takes back a tile that was taken: it is there to be taken again, in its place.
  void GiveBack(TileId tile);
  /// Ends the update of a tile that was taken.
  void Finish(TileId tile);
  /// Ends the first pass of a tile that was taken. It stays loaded, ahead of its second.
  void FinishFirstPass(TileId tile);

 private:
  /// The update from a version, and the tile's position in Schedule::load_order.
  using LoadPlace = std::pair<uint64_t, size_t>;

  struct Tile {
    uint64_t target = 0;  ///< counted in passes, like the members below
    uint64_t version = 0;
    std::optional<size_t> rank;  ///< number in the order of need; none: it is never updated
    size_t position = 0;         ///< number in the order in which updates begin
    bool loaded = false;
    bool ready = false;
    bool taken = false;
    bool held_back = false;
    std::optional<LoadPlace> to_load;  ///< its key in `to_load_`

    bool begun() const { return target > version; }
    bool waits() const { return begun() && !loaded && !held_back; }
    bool ahead() const { return loaded && !begun(); }
  };
  Tile& At(TileId tile) { return tiles_[Index(tile)]; }
  void Sort(Tile& tile);

  const Schedule* schedule_;
  const uint64_t passes_;  ///< passes of an update
  std::vector<Tile> tiles_;
  std::set<size_t> waiting_;     ///< ranks of tiles that wait to be loaded
  std::set<size_t> takeable_;    ///< ranks of tiles that are begun, loaded, ready and not taken
  std::set<LoadPlace> to_load_;  ///< updates that are neither begun nor loaded ahead
  size_t begun_in_round_ = 0;
  uint64_t round_ = 0;  ///< counted in passes
  uint64_t last_round_ = std::numeric_limits<uint64_t>::max();
  size_t unfinished_ = 0;
  size_t unloaded_ = 0;  ///< tiles that are begun and not loaded, held back or not
};

}  // namespace penstock::offload
