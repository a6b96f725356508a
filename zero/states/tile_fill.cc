#include "zero/states/tile_fill.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/dtype.h"
#include "zero/states/source_tiles.h"
#include "zero/states/start_team.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::ShardLayout;
using offload::TileId;

/// Tensors are made or read in pieces of this many elements.
constexpr uint64_t kPieceElements = 64 * 1024;

/// The states of tensors, and how they are read best.
struct States {
  StateSource read;
  /// How many elements from `begin` on can be read in every state at no extra cost. None: any.
  std::function<uint64_t(ModuleId module, size_t tensor, uint64_t begin)> at_once = {};

  uint64_t Piece(ModuleId module, size_t tensor, uint64_t begin, uint64_t wanted) const {
    const uint64_t piece = std::min(kPieceElements, wanted);
    return at_once ? std::min(piece, at_once(module, tensor, begin)) : piece;
  }
};

/// Writes `kinds` of a tile, from the tensors that overlap it (padding stays zero): in the order of
/// the flat index, and all kinds of a piece one after the other, so that the tile of a committed
/// state that they lie in is needed once.
Status FillTile(const States& source, std::span<const StateKind> kinds, const ShardLayout& layout,
                TileId tile, std::span<std::byte> weight, std::span<std::byte> record) {
  const offload::TileLayout& place = layout.tile(tile);
  const offload::ModuleLayout& module = layout.module(place.module);
  std::vector<float> values;
  for (const size_t i : module.TensorsByOffset()) {
    const offload::TensorLayout& tensor = module.tensors[i];
    uint64_t at = std::max(tensor.offset, place.begin);
    const uint64_t end = std::min(tensor.offset + tensor.elements, place.begin + place.elements);
    while (at < end) {
      values.resize(source.Piece(place.module, i, at - tensor.offset, end - at));
      for (const StateKind kind : kinds) {
        PENSTOCK_TRY(source.read(kind, place.module, i, at - tensor.offset, values));
        StoreState(kind, layout, tile, values, at - place.begin, weight.data(), record.data());
      }
      at += values.size();
    }
  }
  return {};
}

/// Weights that fp16 cannot hold would be infinite from the first step on.
Status CheckFloat16(const ShardLayout& layout, ModuleId module, size_t index, uint64_t begin,
                    std::span<const float> values) {
  const auto lost = std::ranges::find_if_not(values, kernels::FitsFloat16);
  if (lost == values.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "element {} of tensor {} is {}, beyond fp16's largest value of 65504; train in "
                   "bf16 (bf16.enabled) or fp32, which hold it",
                   begin + static_cast<uint64_t>(lost - values.begin()),
                   layout.module(module).tensors[index].name, *lost);
}

}  // namespace

TileFill FillFromTensors(const ShardLayout& layout, TensorSource source, float accumulator) {
  return [&layout, source = std::move(source), accumulator](
             TileId tile, std::span<std::byte> weight, std::span<std::byte> record) {
    std::vector<StateKind> kinds = {StateKind::kMaster};
    const bool is_float16 = layout.planes(tile).weight().encoding == Encoding::kFloat16;
    const bool squares = layout.planes(tile).Find(offload::PlaneRole::kExpAvgSq) != nullptr;
    if (squares && accumulator != 0) kinds.push_back(StateKind::kExpAvgSq);
    const auto initial = [&](StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                             std::span<float> values) -> Status {
      if (kind != StateKind::kMaster) {
        std::ranges::fill(values, accumulator);
        return {};
      }
      PENSTOCK_TRY(source(module, tensor, begin, values));
      return is_float16 ? CheckFloat16(layout, module, tensor, begin, values) : Status();
    };
    return FillTile({.read = initial}, kinds, layout, tile, weight, record);
  };
}

TileFill FillFromStates(const ShardLayout& layout, StateSource source) {
  return [&layout, source = std::move(source)](TileId tile, std::span<std::byte> weight,
                                               std::span<std::byte> record) {
    const bool is_float16 = layout.planes(tile).weight().encoding == Encoding::kFloat16;
    const States all = {.read = [&](StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                                    std::span<float> values) -> Status {
      PENSTOCK_TRY(source(kind, module, tensor, begin, values));
      const bool checked = is_float16 && kind == StateKind::kMaster;
      return checked ? CheckFloat16(layout, module, tensor, begin, values) : Status();
    }};
    return FillTile(all, StatesOf(layout.group(tile)), layout, tile, weight, record);
  };
}

Result<TileFill> FillFromState(const ShardLayout& layout, const CommittedState& state) {
  PENSTOCK_ASSIGN(std::unique_ptr<SourceTiles> opened, state.OpenTiles(StartThreads()));
  return TileFill([&layout, &state, tiles = std::shared_ptr<SourceTiles>(std::move(opened))](
                      TileId tile, std::span<std::byte> weight, std::span<std::byte> record) {
    SourceTiles::Pin pin;  // the tile that is read
    const auto read = [&](StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                          std::span<float> values) -> Status {
      PENSTOCK_TRY(CheckKept(state.model(), module, tensor, kind));
      const uint64_t at = state.model().module(module).tensors[tensor].offset + begin;
      const uint32_t rank = state.model().RankAt(module, at, state.world_size());
      const ShardLayout& from = state.shard(rank);
      const RankTile source{.rank = rank, .tile = from.TileAt(module, at)};
      if (!pin.IsOf(source)) {
        pin.Reset();
        PENSTOCK_ASSIGN(pin, tiles->Get(source));
      }
      LoadState(kind, from, source.tile, pin.parts().weight.data(), pin.parts().record.data(),
                at - from.tile(source.tile).begin, values);
      return {};
    };
    const auto at_once = [&](ModuleId module, size_t tensor, uint64_t begin) {
      return state.ReadableAtOnce(module, tensor, begin);
    };
    return FillTile({.read = read, .at_once = at_once}, StatesOf(layout.group(tile)), layout, tile,
                    weight, record);
  });
}

}  // namespace penstock::zero
