// Makes the layout of a model, and of one rank's share of it, from a configuration.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"
#include "comm/world.h"
#include "config/config.h"
#include "offload/layout.h"
#include "zero/model.h"

namespace penstock::zero {

/// The most tiles of a layout: enough for 10^12 parameters in tiles of the default size.
inline constexpr uint64_t kMaxTiles = uint64_t{1} << 20;

/// Refuses tiles that are too small for the model, before a layout is made. Errors: kBudget, with
/// the smallest size that works.
Status CheckTileCount(const ModelSpec& model, const config::Config& config);

/// Makes a layout whose weights have `dtype`, except in groups that name another.
offload::ModelLayout MakeModelLayout(const ModelSpec& model, DType dtype,
                                     const offload::Moments& moments = {});
/// Makes the layout of one rank's share. tile_elements: a multiple of a block.
offload::ShardLayout MakeLayout(const ModelSpec& model, DType dtype, uint64_t tile_elements,
                                const offload::Moments& moments = {},
                                const comm::World& world = {});
/// The same with the dtype, tiles and optimizer of the configuration.
offload::ShardLayout MakeLayout(const ModelSpec& model, const config::Config& config,
                                const comm::World& world = {});

}  // namespace penstock::zero
