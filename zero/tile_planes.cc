#include "zero/tile_planes.h"

#include <algorithm>

namespace penstock::zero {
namespace {

template <typename T>
std::span<T> Plane(std::byte* start, uint64_t begin, uint64_t count) {
  return {reinterpret_cast<T*>(start) + begin, count};
}

std::span<float> Fp32Plane(StateKind kind, const kernels::AdamTile& tile) {
  return kind == StateKind::kMaster   ? tile.weight
         : kind == StateKind::kExpAvg ? tile.exp_avg
                                      : tile.exp_avg_sq;
}

}  // namespace

kernels::AdamTile PlanesOf(DType dtype, uint64_t elements, std::byte* weight, std::byte* record,
                           const std::byte* gradient, uint64_t begin, uint64_t count) {
  kernels::AdamTile tile;
  tile.gradient = gradient + (SizeOf(dtype) * begin).value;
  tile.gradient_dtype = dtype;
  std::byte* moments = record;
  if (dtype == DType::kFloat32) {
    tile.weight = Plane<float>(weight, begin, count);
  } else {
    tile.weight_hi = Plane<kernels::BFloat16>(weight, begin, count);
    tile.weight_lo = Plane<int16_t>(record, begin, count);
    moments += elements * sizeof(int16_t);
  }
  tile.exp_avg = Plane<float>(moments, begin, count);
  tile.exp_avg_sq = Plane<float>(moments + elements * sizeof(float), begin, count);
  return tile;
}

void StoreState(StateKind kind, DType dtype, uint64_t elements, std::span<const float> values,
                uint64_t begin, std::byte* weight, std::byte* record) {
  const kernels::AdamTile tile =
      PlanesOf(dtype, elements, weight, record, nullptr, begin, values.size());
  if (kind == StateKind::kMaster && dtype != DType::kFloat32) {
    for (size_t i = 0; i < values.size(); ++i) {
      const kernels::SplitMaster split = kernels::Split(values[i]);
      tile.weight_hi[i] = split.hi;
      tile.weight_lo[i] = split.lo;
    }
    return;
  }
  std::ranges::copy(values, Fp32Plane(kind, tile).begin());
}

void LoadState(StateKind kind, DType dtype, uint64_t elements, const std::byte* weight,
               const std::byte* record, uint64_t begin, std::span<float> values) {
  // The planes are only read here.
  const kernels::AdamTile tile =
      PlanesOf(dtype, elements, const_cast<std::byte*>(weight), const_cast<std::byte*>(record),
               nullptr, begin, values.size());
  if (kind == StateKind::kMaster && dtype != DType::kFloat32) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = kernels::Join({tile.weight_hi[i], tile.weight_lo[i]});
    }
    return;
  }
  std::ranges::copy(Fp32Plane(kind, tile), values.begin());
}

}  // namespace penstock::zero
