// Cuts a model into modules' flat indices, shards and tiles.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"
#include "offload/layout.h"
#include "zero/config.h"
#include "zero/model.h"

namespace penstock::zero {

/// The part of a module's flat index that a rank owns: [begin, begin + elements), whole blocks.
struct Shard {
  uint64_t begin = 0;
  uint64_t elements = 0;
};

/// Blocks are dealt out in order, the first `blocks % world_size` ranks get one more: together the
/// shards cover the index exactly, and a rank's may be empty. Precondition: elements is a multiple
/// of a block, rank < world_size.
Shard ShardOf(uint64_t elements, uint32_t world_size, uint32_t rank);

/// The most tiles of a layout: those of a model of 10^12 parameters in the default size.
inline constexpr uint64_t kMostTiles = uint64_t{1} << 20;

/// Refuses tiles that are too small for the model, before a layout is made of them. Errors:
/// kBudget, with the smallest size that works.
Status CheckTileCount(const ModelSpec& model, const Config& config);

/// The layout for one rank (world size 1). tile_elements: a multiple of a block.
offload::Layout MakeLayout(const ModelSpec& model, DType dtype, uint64_t tile_elements,
                           const offload::Moments& moments = {});
/// With the dtype, tiles and optimizer of the configuration.
offload::Layout MakeLayout(const ModelSpec& model, const Config& config);

}  // namespace penstock::zero
