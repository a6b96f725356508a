#include "zero/plan/gradient_batches.h"

#include <algorithm>

#include "device/device.h"

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

/// `begin`: elements before the tiles in the sums, where they lie one after the other.
std::vector<GradientBatch> Cut(const ShardLayout& layout, offload::IdRange<TileId> tiles,
                               uint64_t begin, Bytes most) {
  std::vector<GradientBatch> batches;
  uint32_t first = 0;
  for (const TileId tile : tiles) {
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

/// All that a module puts into staging.
StagedBatches Together(std::vector<GradientBatch> batches) {
  StagedBatches staged{.batches = std::move(batches), .size = {}};
  for (const GradientBatch& batch : staged.batches) staged.size += StagedBytes(batch);
  return staged;
}

}  // namespace

std::vector<GradientBatch> GradientBatches(const ShardLayout& layout, ModuleId module, Bytes most) {
  return Cut(layout, layout.TrainedTilesOf(module), 0, most);
}

std::vector<GradientBatch> CutBatch(const ShardLayout& layout, const GradientBatch& batch,
                                    Bytes most) {
  return Cut(layout, batch.tiles, batch.begin, most);
}

Bytes StagedBytes(const GradientBatch& batch) {
  return AlignUp(batch.size(), device::kDeviceAlignment);
}

std::vector<StagedBatches> StageModule(const ShardLayout& layout, ModuleId module, Bytes staging) {
  StagedBatches whole = Together(GradientBatches(layout, module, kWholeModule));
  if (whole.batches.empty()) return {};
  if (whole.size <= staging) return {std::move(whole)};
  std::vector<StagedBatches> parts;
  for (const GradientBatch& batch : GradientBatches(layout, module, Bytes{staging.value / 2})) {
    parts.push_back(Together({batch}));
  }
  return parts;
}

Bytes LeastGradientStaging(const ShardLayout& layout) {
  Bytes largest;
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    for (const GradientBatch& batch : GradientBatches(layout, module)) {
      largest = std::max(largest, StagedBytes(batch));
    }
  }
  return largest * 2;
}

Bytes LayerGradientStaging(const ModelSpec& model, const ShardLayout& layout) {
  const bool any_repeated = std::ranges::any_of(model.modules, &ModuleSpec::repeated);
  Bytes largest = LeastGradientStaging(layout);
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    if (any_repeated && !model.modules[Index(module)].repeated) continue;
    largest = std::max(largest, Together(GradientBatches(layout, module, kWholeModule)).size);
  }
  // Each half begins where a batch may.
  return AlignUp(largest, device::kDeviceAlignment * 2);
}

}  // namespace penstock::zero
