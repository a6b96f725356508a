#include "zero/partitioner.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::zero {
namespace {

using offload::Layout;
using offload::ParameterGroup;
using offload::TensorLayout;
using offload::TileId;

uint64_t RoundUpToBlock(uint64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements * kBlockElements;
}

uint64_t ElementsOf(const TensorSpec& tensor) {
  uint64_t elements = 1;
  for (const uint64_t size : tensor.shape) elements = SaturatingMultiply(elements, size);
  return elements;
}

uint64_t TilesOf(const ModelSpec& model, uint64_t tile_elements) {
  uint64_t tiles = 0;
  for (const ModuleSpec& module : model.modules) {
    for (const bool decay : {true, false}) {
      uint64_t elements = 0;
      for (const TensorSpec& tensor : module.tensors) {
        if (tensor.weight_decay == decay) elements = SaturatingAdd(elements, ElementsOf(tensor));
      }
      tiles += elements / tile_elements + (elements % tile_elements == 0 ? 0 : 1);
    }
  }
  return tiles;
}

/// Lays the tensors of one group behind each other from `begin`; returns the padded end.
uint64_t PlaceGroup(const ModuleSpec& spec, ParameterGroup group, uint64_t begin,
                    std::vector<TensorLayout>& tensors) {
  uint64_t next = begin;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    if (tensor.weight_decay != (group == ParameterGroup::kDecay)) continue;
    const uint64_t elements = ElementsOf(tensor);
    tensors[i] = {.name = tensor.name,
                  .shape = tensor.shape,
                  .group = group,
                  .offset = next,
                  .elements = elements};
    next += elements;
  }
  return RoundUpToBlock(next);
}

void CutTiles(Layout& layout, ModuleId module, ParameterGroup group, uint64_t begin, uint64_t end) {
  for (uint64_t at = begin; at < end; at += layout.tile_elements) {
    layout.tiles.push_back({.module = module,
                            .begin = at,
                            .elements = std::min(layout.tile_elements, end - at),
                            .group = group});
    ++layout.modules[offload::Index(module)].tile_count;
  }
}

}  // namespace

Shard ShardOf(uint64_t elements, uint32_t world_size, uint32_t rank) {
  PENSTOCK_CHECK(elements % kBlockElements == 0 && rank < world_size);
  const uint64_t blocks = elements / kBlockElements;
  const uint64_t share = blocks / world_size;
  const uint64_t longer = blocks % world_size;
  const uint64_t first = rank * share + std::min<uint64_t>(rank, longer);
  return {.begin = first * kBlockElements,
          .elements = (share + (rank < longer ? 1 : 0)) * kBlockElements};
}

Status CheckTileCount(const ModelSpec& model, const Config& config) {
  const uint64_t tiles = TilesOf(model, config.tile_elements);
  if (tiles <= kMostTiles) return {};
  uint64_t enough = config.tile_elements;
  while (TilesOf(model, enough) > kMostTiles) enough *= 2;
  return MakeError(ErrorCode::kBudget,
                   "penstock.tile_elements: with {} elements in a tile the model has {} tiles, and "
                   "{} is the limit; give {} (and as much to sub_group_size, where it is set)",
                   config.tile_elements, tiles, kMostTiles, enough);
}

Layout MakeLayout(const ModelSpec& model, DType dtype, uint64_t tile_elements,
                  const offload::Moments& moments) {
  PENSTOCK_CHECK(tile_elements > 0 && tile_elements % kBlockElements == 0);
  Layout layout{.dtype = dtype, .moments = moments, .tile_elements = tile_elements};
  for (const ModuleSpec& spec : model.modules) {
    const ModuleId id{static_cast<uint32_t>(layout.modules.size())};
    std::vector<TensorLayout> tensors(spec.tensors.size());
    const uint64_t decay_end = PlaceGroup(spec, ParameterGroup::kDecay, 0, tensors);
    const uint64_t end = PlaceGroup(spec, ParameterGroup::kNoDecay, decay_end, tensors);
    for (const TensorLayout& tensor : tensors) layout.parameters += tensor.elements;
    layout.modules.push_back({.name = spec.name,
                              .tensors = std::move(tensors),
                              .elements = end,
                              .first_tile = TileId{static_cast<uint32_t>(layout.tiles.size())}});
    CutTiles(layout, id, ParameterGroup::kDecay, 0, decay_end);
    CutTiles(layout, id, ParameterGroup::kNoDecay, decay_end, end);
  }
  return layout;
}

Layout MakeLayout(const ModelSpec& model, const Config& config) {
  const kernels::RuleMoments of_rule = kernels::MomentsOf(config.optimizer.hyper);
  return MakeLayout(model, config.dtype, config.tile_elements,
                    {.exp_avg = of_rule.exp_avg,
                     .exp_avg_sq = of_rule.exp_avg_sq,
                     .dtype = config.optimizer.moments});
}

}  // namespace penstock::zero
