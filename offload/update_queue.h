// Which tiles are to be updated, and in which order.
//
// A tile's update is *begun* when its gradient is final, *loaded* when the states it works on are
// in host memory or on their way there, and *ready* when they have arrived. Loading goes by need:
// of the tiles whose update is begun, the one whose weight is needed soonest comes first. Only when
// all of these are loaded does loading run ahead, in the order in which updates will begin. So what
// is loaded ahead never takes the room of what others wait for.
//
// A plain value: no I/O, no waiting, no locking. Every call costs O(log tiles), NextToLoad over all
// its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "offload/schedule.h"

namespace penstock::offload {

class UpdateQueue {
 public:
  /// Of so many tiles, of which the schedule (borrowed) names those that are updated. The others
  /// keep version 0.
  UpdateQueue(const Schedule& schedule, size_t tiles);
  /// Gives every tile that is updated `version`.
  void Reset(uint64_t version);

  /// No update follows the next one of every tile: none is loaded ahead for it.
  void EndAfterThisRound() { last_round_ = round_; }

  /// The number of updates that every tile that is updated has begun.
  uint64_t round() const { return round_; }
  /// The version that the tile has, and the one that it has or is to get.
  uint64_t version(TileId tile) const { return tiles_[Index(tile)].version; }
  uint64_t target(TileId tile) const { return tiles_[Index(tile)].target; }
  /// The number of updates that are begun and not finished.
  size_t unfinished() const { return unfinished_; }
  /// The number of tiles that Take can give.
  size_t takeable() const { return takeable_.size(); }

  /// Precondition: the tile's update before this one is finished.
  void Begin(TileId tile);

  struct Candidate {
    TileId tile{};
    bool ahead = false;  ///< the tile's update has not begun
  };
  /// The tile to load next, until something is loaded, begun, held back or let go.
  std::optional<Candidate> NextToLoad();
  void Loaded(TileId tile);
  /// A tile that is held back is not loaded, as its last version is still being written. One whose
  /// update is begun keeps its place: others that are begun pass it, but nothing is loaded ahead.
  void HoldBack(TileId tile);
  void LetGo(TileId tile);

  /// Whether a tile's states have arrived and nobody else uses them.
  void SetReady(TileId tile, bool ready);
  /// The tile needed soonest of those that are begun, loaded and ready. It is not given again.
  std::optional<TileId> Take();
  /// Ends the update of a tile that was taken.
  void Finish(TileId tile);

 private:
  struct Tile {
    uint64_t target = 0;
    uint64_t version = 0;
    size_t rank = 0;  ///< in the order of need
    bool loaded = false;
    bool ready = false;
    bool taken = false;
    bool held_back = false;

    bool begun() const { return target > version; }
  };
  Tile& At(TileId tile) { return tiles_[Index(tile)]; }
  void Sort(const Tile& tile);

  const Schedule& schedule_;
  std::vector<Tile> tiles_;
  std::set<size_t> waiting_;   ///< ranks of tiles that are begun, not loaded and not held back
  std::set<size_t> takeable_;  ///< ranks of tiles that are begun, loaded, ready and not taken
  size_t ahead_ = 0;           ///< position in Schedule::load_order
  uint64_t ahead_round_ = 0;   ///< the version from which that tile is to be updated
  size_t begun_in_round_ = 0;
  uint64_t round_ = 0;
  uint64_t last_round_ = std::numeric_limits<uint64_t>::max();
  size_t unfinished_ = 0;
  size_t unloaded_ = 0;  ///< tiles that are begun and not loaded, held back or not
};

}  // namespace penstock::offload
