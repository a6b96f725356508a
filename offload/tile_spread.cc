#include "offload/tile_spread.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// Speeds as whole numbers, the fastest kScale: no sum of them depends on rounding.
std::vector<int64_t> Weights(std::span<const double> speeds) {
  constexpr double kScale = 1 << 20;
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  std::vector<int64_t> weights;
  for (double speed : speeds) {
    PENSTOCK_CHECK(speed > 0);
    weights.push_back(std::max<int64_t>(1, std::llround(speed / fastest * kScale)));
  }
  return weights;
}

}  // namespace

std::vector<uint16_t> SpreadTiles(const ShardLayout& layout, std::span<const double> speeds) {
  const std::vector<int64_t> weights = Weights(speeds);
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> behind(weights.size(), 0);  // pages that a path lacks of its share * total
  std::vector<uint16_t> paths;
  for (const TileId tile : layout.Tiles()) {
    const Bytes size = layout.WeightBytes(tile) + layout.RecordBytes(tile);
    const auto pages = static_cast<int64_t>(size / kPlaneAlignment);
    size_t furthest = 0;
    for (size_t path = 0; path < weights.size(); ++path) {
      behind[path] += pages * weights[path];
      if (behind[path] > behind[furthest]) furthest = path;
    }
    behind[furthest] -= pages * total;
    paths.push_back(static_cast<uint16_t>(furthest));
  }
  return paths;
}

/// Multiples of the golden ratio, modulo 1: their first n are spread evenly for every n, and so are
/// those of each k-th number (D. Knuth, The Art of Computer Programming, volume 3, section 6.4).
std::vector<TileId> HostTileOrder(const ShardLayout& layout) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  const auto place = [](TileId tile) { return uint64_t{Index(tile)} * kGoldenRatio; };
  std::vector<TileId> tiles;
  for (const TileId tile : layout.Tiles()) tiles.push_back(tile);
  std::ranges::sort(tiles, {}, place);
  return tiles;
}

}  // namespace penstock::offload
