#include "offload/layout.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace penstock::offload {

std::vector<size_t> ModuleLayout::TensorsByOffset() const {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; });
  return order;
}

bool Layout::HasTensorsOf(const Layout& other) const {
  return dtype == other.dtype && moments == other.moments &&
         std::ranges::equal(modules, other.modules, [](const auto& a, const auto& b) {
           return a.name == b.name && a.elements == b.elements && a.tensors == b.tensors;
         });
}

RecordStates Layout::States() const {
  RecordStates states;
  if (dtype != DType::kFloat32) states.Add({RecordKind::kLo, Bytes{sizeof(int16_t)}});
  const Bytes moment = SizeOf(moments.dtype);
  if (moments.exp_avg) states.Add({RecordKind::kExpAvg, moment});
  if (moments.exp_avg_sq) states.Add({RecordKind::kExpAvgSq, moment});
  return states;
}

Bytes Layout::RecordBytes(uint64_t elements) const {
  Bytes element;
  for (const RecordState& state : States()) element += state.element;
  return element * elements;
}

TileId Layout::TileAt(ModuleId id, uint64_t element) const {
  const ModuleLayout& place = module(id);
  const auto first = tiles.begin() + static_cast<ptrdiff_t>(Index(place.first_tile));
  const auto after =
      std::upper_bound(first, first + place.tile_count, element,
                       [](uint64_t value, const TileLayout& tile) { return value < tile.begin; });
  PENSTOCK_CHECK(element < place.elements && after != first);
  return TileId{static_cast<uint32_t>(after - tiles.begin() - 1)};
}

uint64_t Layout::elements() const {
  uint64_t sum = 0;
  for (const ModuleLayout& module : modules) sum += module.elements;
  return sum;
}

uint64_t Layout::largest_tile() const {
  uint64_t largest = 0;
  for (const TileLayout& tile : tiles) largest = std::max(largest, tile.elements);
  return largest;
}

uint64_t Layout::most_tiles() const {
  uint64_t most = 0;
  for (const ModuleLayout& module : modules) most = std::max<uint64_t>(most, module.tile_count);
  return most;
}

}  // namespace penstock::offload
