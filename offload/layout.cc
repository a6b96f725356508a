#include "offload/layout.h"

#include <algorithm>

namespace penstock::offload {

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

}  // namespace penstock::offload
