#include "zero/gradient_batches.h"

#include <algorithm>

namespace penstock::zero {
namespace {

using offload::Index;
using offload::ModuleId;
using offload::ShardLayout;
using offload::TileId;

bool Continues(const ShardLayout& layout, const GradientBatch& batch, TileId tile, Bytes most) {
  return layout.GradientDType(tile) == batch.dtype &&
         SizeOf(batch.dtype) * (batch.elements + layout.tile(tile).elements) <= most;
}

}  // namespace

std::vector<GradientBatch> GradientBatches(const ShardLayout& layout, ModuleId module, Bytes most) {
  std::vector<GradientBatch> batches;
  uint32_t first = 0;
  uint64_t begin = 0;  // trained tiles lie in the sums one after the other
  for (const TileId tile : layout.TrainedTilesOf(module)) {
    const offload::TileLayout& place = layout.tile(tile);
    const auto index = static_cast<uint32_t>(Index(tile));
    if (!batches.empty() && Continues(layout, batches.back(), tile, most)) {
      batches.back().tiles = {first, index + 1};
      batches.back().elements += place.elements;
    } else {
      first = index;
      batches.push_back({.tiles = {first, first + 1},
                         .begin = begin,
                         .elements = place.elements,
                         .dtype = layout.GradientDType(tile)});
    }
    begin += place.elements;
  }
  return batches;
}

Bytes GradientStagingBytes(const ShardLayout& layout) {
  Bytes largest;
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    for (const GradientBatch& batch : GradientBatches(layout, module)) {
      largest = std::max(largest, SizeOf(batch.dtype) * batch.elements);
    }
  }
  return largest;
}

}  // namespace penstock::zero
