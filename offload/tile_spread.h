// Distributes tiles: to paths in proportion to their speed, and to host memory evenly over the
// model. Plain functions of layout and speeds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/layout.h"

namespace penstock::offload {

/// Returns the path of each tile. In the order of tile numbers, each tile goes to the path that is
/// furthest behind its share of the bytes so far; of equal ones, to the first. So no path is ever
/// more than one tile ahead of its share, and neighbours lie on different paths as far as shares
/// allow. `speeds`: one for each path, positive, in any unit.
std::vector<uint16_t> SpreadTiles(const ShardLayout& layout, std::span<const double> speeds);

/// Returns all tiles in the order in which host memory takes them for good. Any number of them from
/// the first on is spread evenly over the tile numbers, and so over modules and paths: wherever a
/// step is, the drives have the same share of its work.
std::vector<TileId> HostTileOrder(const ShardLayout& layout);

}  // namespace penstock::offload
