// Which tiles are to be updated, and in which order: bookkeeping alone, without I/O, waiting or
// locking; TileStore serialises.
//
// A tile's update is *begun* when its gradient is final, and *loaded* when the states it works on
// are in host memory or on their way there. Loading goes by need: of the tiles whose update is
// begun the one whose weight is needed soonest; only when all of these are loaded, ahead, in the
// order in which updates will begin. So what is loaded ahead never takes the room of what others
// wait for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "offload/schedule.h"

namespace penstock::offload {

class UpdateQueue {
 public:
  /// Brings a tile's states in; `ahead`: its update has not begun. False: not possible now.
  using Load = std::function<bool(TileId tile, bool ahead)>;
  /// Whether a loaded tile can be updated now.
  using Ready = std::function<bool(TileId tile)>;

  /// Borrows the schedule.
  explicit UpdateQueue(const Schedule& schedule);
  /// Every tile has `version`.
  void Reset(uint64_t version);

  /// Updates that every tile has begun.
  uint64_t round() const { return round_; }
  /// The version that the tile has, and the one that it has or is to get.
  uint64_t version(TileId tile) const { return tiles_[Index(tile)].version; }
  uint64_t target(TileId tile) const { return tiles_[Index(tile)].target; }
  /// Updates that are begun and not finished.
  size_t unfinished() const { return unfinished_; }

  /// Precondition: the tile's update before this one is finished.
  void Begin(TileId tile);
  /// Calls `load` for one tile after the other until it says no; returns whether it ever said yes.
  bool LoadMore(const Load& load);
  /// The tile needed soonest of those that are begun, loaded and ready; it is not given again.
  std::optional<TileId> Take(const Ready& ready);
  /// A tile that was taken is updated.
  void Finish(TileId tile);

 private:
  struct Tile {
    uint64_t target = 0;
    uint64_t version = 0;
    bool loaded = false;
    size_t rank = 0;  ///< in the order of need
  };
  Tile& At(TileId tile) { return tiles_[Index(tile)]; }
  bool LoadBegun(const Load& load);
  bool LoadAhead(const Load& load);

  const Schedule& schedule_;
  std::vector<Tile> tiles_;
  std::set<size_t> waiting_;   ///< ranks of tiles that are begun, not loaded
  std::set<size_t> takeable_;  ///< begun, loaded and not taken
  size_t ahead_ = 0;           ///< position in Schedule::load_order
  uint64_t ahead_round_ = 0;   ///< and the version from which that tile is to be updated
  size_t begun_in_round_ = 0;
  uint64_t round_ = 0;
  size_t unfinished_ = 0;
};

}  // namespace penstock::offload
