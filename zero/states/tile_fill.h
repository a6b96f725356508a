// Fills tiles from tensors, or from a committed state that may be cut into other tiles and belong
// to other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "offload/layout.h"
#include "zero/model.h"
#include "zero/states/committed_state.h"

namespace penstock::zero {

/// Fills `values` with elements [begin, begin + size) of tensor `tensor` of `module`: a function of
/// its arguments alone, so that any tile can be made on its own, and several at once by as many
/// threads.
using TensorSource =
    std::function<Status(ModuleId module, size_t tensor, uint64_t begin, std::span<float> values)>;

/// Writes a tile's parts, which are zeroed memory, as version 0. Threads: any, each with other
/// tiles.
using TileFill = std::function<Status(offload::TileId tile, std::span<std::byte> weight,
                                      std::span<std::byte> record)>;

/// Fills tiles of `layout` from tensors, exp_avg with zeros and exp_avg_sq with `accumulator`.
/// Errors of the fill: of the source; kInvalidArgument for a finite weight that fp16 cannot hold.
TileFill FillFromTensors(const offload::ShardLayout& layout, TensorSource source,
                         float accumulator);

/// As a TensorSource, for one state of a tensor.
using StateSource = std::function<Status(StateKind kind, ModuleId module, size_t tensor,
                                         uint64_t begin, std::span<float> values)>;
/// Fills tiles of `layout` with every state that their group has. Errors: as FillFromTensors.
TileFill FillFromStates(const offload::ShardLayout& layout, StateSource source);

/// Fills tiles of `layout`, which may cut the same tensors into other tiles and other shares, with
/// everything that `state` holds, by StartThreads() threads at most. If they are filled in order, a
/// tile of `state` is read once, or twice where two tiles that need a part of it are filled at
/// different times. Borrows both; the state stays at its commit. Errors: of opening its files.
Result<TileFill> FillFromState(const offload::ShardLayout& layout, const CommittedState& state);

}  // namespace penstock::zero
