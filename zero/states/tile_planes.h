// Gives the kernels typed views of a tile's bytes: the master, the moments and the gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/state/optimizer_tile.h"
#include "offload/layout.h"
#include "zero/states/committed_state.h"

namespace penstock::zero {

/// Returns elements [begin, begin + count) of a tile whose parts and gradient start at the given
/// addresses. The caller sets the rounding. Precondition: no encoding of the tile has scales.
kernels::OptimizerTile PlanesOf(const offload::ShardLayout& layout, offload::TileId tile,
                                std::byte* weight, std::byte* record, const std::byte* gradient,
                                uint64_t begin, uint64_t count);

/// Returns whether the weights of an updated tile are finite.
bool WeightsAreFinite(const kernels::OptimizerTile& planes);
/// Returns the error of a commit in which the weights of `tile` are not finite: kNumeric.
Error NotFinite(const offload::ShardLayout& layout, offload::TileId tile);

/// Writes one state into a tile's parts from element `begin` on; the others stay as they are. bf16
/// moments are rounded to nearest even, and so is the weight that has its master beside it.
/// Precondition, also of LoadState: the tile has this state.
void StoreState(StateKind kind, const offload::ShardLayout& layout, offload::TileId tile,
                std::span<const float> values, uint64_t begin, std::byte* weight,
                std::byte* record);
/// Reads one state back from element `begin` on, exactly.
void LoadState(StateKind kind, const offload::ShardLayout& layout, offload::TileId tile,
               const std::byte* weight, const std::byte* record, uint64_t begin,
               std::span<float> values);

}  // namespace penstock::zero
