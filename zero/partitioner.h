// The layout of a model, and of what one rank holds of it, by a configuration.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"
#include "offload/layout.h"
#include "zero/config.h"
#include "zero/model.h"

namespace penstock::zero {

/// The most tiles of a layout: those of a model of 10^12 parameters in the default size.
inline constexpr uint64_t kMostTiles = uint64_t{1} << 20;

/// Refuses tiles that are too small for the model, before a layout is made of them. Errors:
/// kBudget, with the smallest size that works.
Status CheckTileCount(const ModelSpec& model, const Config& config);

/// Weights of `dtype`, but of groups that say another.
offload::ModelLayout MakeModelLayout(const ModelSpec& model, DType dtype,
                                     const offload::Moments& moments = {});
/// The layout for one rank (world size 1). tile_elements: a multiple of a block.
offload::ShardLayout MakeLayout(const ModelSpec& model, DType dtype, uint64_t tile_elements,
                                const offload::Moments& moments = {});
/// With the dtype, tiles and optimizer of the configuration.
offload::ShardLayout MakeLayout(const ModelSpec& model, const Config& config);

}  // namespace penstock::zero
