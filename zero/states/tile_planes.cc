#include "zero/states/tile_planes.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/state/all_finite.h"

namespace penstock::zero {
namespace {

using kernels::BFloat16;
using kernels::Float16;
using kernels::PlaneView;
using offload::Plane;
using offload::PlaneRole;
using offload::ShardLayout;
using offload::TileId;

PlaneView& ViewOf(PlaneRole role, kernels::OptimizerTile& tile) {
  switch (role) {
    case PlaneRole::kWeight:
      return tile.weight;
    case PlaneRole::kLo:
      return tile.lo;
    case PlaneRole::kMaster:
      return tile.master;
    case PlaneRole::kExpAvg:
      return tile.exp_avg;
    case PlaneRole::kExpAvgSq:
      break;
  }
  return tile.exp_avg_sq;
}

/// Rounded to nearest even if the plane is not fp32.
void Store(const PlaneView& plane, uint64_t i, float value) {
  switch (plane.encoding()) {
    case Encoding::kBFloat16:
      plane.As<BFloat16>()[i] = kernels::RoundToBFloat16(value);
      return;
    case Encoding::kFloat16:
      plane.As<Float16>()[i] = Float16{kernels::RoundToFloat16(value)};
      return;
    default:
      plane.As<float>()[i] = value;
  }
}

float Load(const PlaneView& plane, uint64_t i) {
  switch (plane.encoding()) {
    case Encoding::kBFloat16:
      return ToFloat(plane.As<BFloat16>()[i]);
    case Encoding::kFloat16:
      return ToFloat(plane.As<Float16>()[i]);
    default:
      return plane.As<float>()[i];
  }
}

const PlaneView& PlaneOf(StateKind kind, const kernels::OptimizerTile& tile) {
  const PlaneView& plane = kind == StateKind::kMaster   ? WholeMaster(tile)
                           : kind == StateKind::kExpAvg ? tile.exp_avg
                                                        : tile.exp_avg_sq;
  PENSTOCK_CHECK(!plane.empty(), "a state that the tile lacks");
  return plane;
}

bool IsSplit(StateKind kind, const kernels::OptimizerTile& tile) {
  return kind == StateKind::kMaster && !tile.lo.empty();
}

}  // namespace

bool WeightsAreFinite(const kernels::OptimizerTile& planes) {
  return kernels::AllFinite(planes.weight.data(), static_cast<DType>(planes.weight.encoding()),
                            planes.weight.size());
}

Error NotFinite(const ShardLayout& layout, TileId tile) {
  const bool fp16 = layout.planes(tile).weight().encoding == Encoding::kFloat16;
  return MakeError(ErrorCode::kNumeric,
                   "weights of module {} are not finite any more{}: they are not committed",
                   layout.module(tile).name,
                   fp16 ? " in fp16, where 65520 and what is above it is infinite" : "");
}

kernels::OptimizerTile PlanesOf(const ShardLayout& layout, TileId tile, std::byte* weight,
                                std::byte* record, const std::byte* gradient, uint64_t begin,
                                uint64_t count) {
  const DType gradient_dtype = layout.GradientDType(tile);
  kernels::OptimizerTile views{.gradient = nullptr, .gradient_dtype = gradient_dtype};
  if (gradient != nullptr) views.gradient = gradient + (SizeOf(gradient_dtype) * begin).value;
  std::byte* next = weight;
  for (const Plane& plane : layout.planes(tile).all()) {
    const Bytes element{plane.block.value / kBlockElements};
    PENSTOCK_CHECK(element * kBlockElements == plane.block, "a plane with scales");
    ViewOf(plane.role, views) = {plane.encoding, next + (element * begin).value, count};
    next = plane.role == PlaneRole::kWeight ? record
                                            : next + plane.Size(layout.tile(tile).elements).value;
  }
  return views;
}

void StoreState(StateKind kind, const ShardLayout& layout, TileId tile,
                std::span<const float> values, uint64_t begin, std::byte* weight,
                std::byte* record) {
  const kernels::OptimizerTile views =
      PlanesOf(layout, tile, weight, record, nullptr, begin, values.size());
  if (IsSplit(kind, views)) {
    auto* const hi = views.weight.As<BFloat16>();
    auto* const lo = views.lo.As<int16_t>();
    for (size_t i = 0; i < values.size(); ++i) {
      const kernels::SplitMaster split = kernels::Split(values[i]);
      hi[i] = split.hi;
      lo[i] = split.lo;
    }
    return;
  }
  const PlaneView& plane = PlaneOf(kind, views);
  for (size_t i = 0; i < values.size(); ++i) Store(plane, i, values[i]);
  if (kind != StateKind::kMaster || views.master.empty()) return;
  for (size_t i = 0; i < values.size(); ++i) Store(views.weight, i, values[i]);
}

void LoadState(StateKind kind, const ShardLayout& layout, TileId tile, const std::byte* weight,
               const std::byte* record, uint64_t begin, std::span<float> values) {
  // The planes are only read here.
  const kernels::OptimizerTile views =
      PlanesOf(layout, tile, const_cast<std::byte*>(weight), const_cast<std::byte*>(record),
               nullptr, begin, values.size());
  if (IsSplit(kind, views)) {
    const auto* const hi = views.weight.As<BFloat16>();
    const auto* const lo = views.lo.As<int16_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = kernels::Join({hi[i], lo[i]});
    return;
  }
  const PlaneView& plane = PlaneOf(kind, views);
  for (size_t i = 0; i < values.size(); ++i) values[i] = Load(plane, i);
}

}  // namespace penstock::zero
