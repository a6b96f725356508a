#include "zero/tile_planes.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/all_finite.h"

namespace penstock::zero {
namespace {

using kernels::BFloat16;
using offload::Layout;
using offload::RecordKind;

template <typename T>
std::span<T> Plane(std::byte* start, uint64_t begin, uint64_t count) {
  return {reinterpret_cast<T*>(start) + begin, count};
}

/// A state of a tile; one of its spans is not empty.
struct StatePlane {
  std::span<float> fp32;
  std::span<BFloat16> bf16;
};

StatePlane PlaneOf(StateKind kind, const kernels::OptimizerTile& tile) {
  const StatePlane plane = kind == StateKind::kMaster ? StatePlane{tile.weight, {}}
                           : kind == StateKind::kExpAvg
                               ? StatePlane{tile.exp_avg, tile.exp_avg_bf16}
                               : StatePlane{tile.exp_avg_sq, tile.exp_avg_sq_bf16};
  PENSTOCK_CHECK(!plane.fp32.empty() || !plane.bf16.empty(), "a state that the record lacks");
  return plane;
}

bool IsSplit(StateKind kind, const kernels::OptimizerTile& tile) {
  return kind == StateKind::kMaster && tile.weight.empty();
}

}  // namespace

bool WeightsAreFinite(const kernels::OptimizerTile& planes) {
  if (planes.weight.empty()) {
    return kernels::AllFinite(planes.weight_hi.data(), DType::kBFloat16, planes.weight_hi.size());
  }
  return kernels::AllFinite(planes.weight.data(), DType::kFloat32, planes.weight.size());
}

Error NotFinite(const Layout& layout, offload::TileId tile) {
  return MakeError(ErrorCode::kNumeric,
                   "weights of module {} are not finite any more: they are not committed",
                   layout.module(layout.tile(tile).module).name);
}

kernels::OptimizerTile PlanesOf(const Layout& layout, uint64_t elements, std::byte* weight,
                                std::byte* record, const std::byte* gradient, uint64_t begin,
                                uint64_t count) {
  kernels::OptimizerTile tile;
  tile.gradient = gradient + (SizeOf(layout.dtype) * begin).value;
  tile.gradient_dtype = layout.dtype;
  if (layout.dtype == DType::kFloat32) {
    tile.weight = Plane<float>(weight, begin, count);
  } else {
    tile.weight_hi = Plane<BFloat16>(weight, begin, count);
  }
  const bool bf16 = layout.moments.dtype == DType::kBFloat16;
  for (const offload::RecordState& state : layout.States()) {
    const bool first = state.kind == RecordKind::kExpAvg;
    if (state.kind == RecordKind::kLo) {
      tile.weight_lo = Plane<int16_t>(record, begin, count);
    } else if (bf16) {
      (first ? tile.exp_avg_bf16 : tile.exp_avg_sq_bf16) = Plane<BFloat16>(record, begin, count);
    } else {
      (first ? tile.exp_avg : tile.exp_avg_sq) = Plane<float>(record, begin, count);
    }
    record += (state.element * elements).value;
  }
  return tile;
}

void StoreState(StateKind kind, const Layout& layout, uint64_t elements,
                std::span<const float> values, uint64_t begin, std::byte* weight,
                std::byte* record) {
  const kernels::OptimizerTile tile =
      PlanesOf(layout, elements, weight, record, nullptr, begin, values.size());
  if (IsSplit(kind, tile)) {
    for (size_t i = 0; i < values.size(); ++i) {
      const kernels::SplitMaster split = kernels::Split(values[i]);
      tile.weight_hi[i] = split.hi;
      tile.weight_lo[i] = split.lo;
    }
    return;
  }
  const StatePlane plane = PlaneOf(kind, tile);
  if (plane.bf16.empty()) {
    std::ranges::copy(values, plane.fp32.begin());
  } else {
    std::ranges::transform(values, plane.bf16.begin(), kernels::RoundToBFloat16);
  }
}

void LoadState(StateKind kind, const Layout& layout, uint64_t elements, const std::byte* weight,
               const std::byte* record, uint64_t begin, std::span<float> values) {
  // The planes are only read here.
  const kernels::OptimizerTile tile =
      PlanesOf(layout, elements, const_cast<std::byte*>(weight), const_cast<std::byte*>(record),
               nullptr, begin, values.size());
  if (IsSplit(kind, tile)) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = kernels::Join({tile.weight_hi[i], tile.weight_lo[i]});
    }
    return;
  }
  const StatePlane plane = PlaneOf(kind, tile);
  if (plane.bf16.empty()) {
    std::ranges::copy(plane.fp32, values.begin());
  } else {
    for (size_t i = 0; i < values.size(); ++i) values[i] = kernels::ToFloat(plane.bf16[i]);
  }
}

}  // namespace penstock::zero
