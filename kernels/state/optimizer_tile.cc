#include "kernels/state/optimizer_tile.h"

#include <cstddef>
#include <string_view>

#include "base/check.h"

namespace penstock::kernels {
namespace {

void CheckMoments(std::string_view name, const PlaneView& moments, uint64_t n) {
  if (moments.empty()) return;
  PENSTOCK_CHECK(moments.size() == n, "{} {} in {} for {} weights", moments.size(), name,
                 ToString(moments.encoding()), n);
  PENSTOCK_CHECK(moments.Has(Encoding::kFloat32) || moments.Has(Encoding::kBFloat16),
                 "{} in {}, which no rule takes", name, ToString(moments.encoding()));
}

}  // namespace

void CheckFigures(std::span<const WeightFigures> of_blocks, uint64_t n) {
  const uint64_t blocks = (n + kBlockElements - 1) / kBlockElements;
  PENSTOCK_CHECK(of_blocks.empty() || of_blocks.size() == blocks, "{} figures for {} blocks",
                 of_blocks.size(), blocks);
}

uint64_t ElementCount(const OptimizerTile& tile) {
  const uint64_t n = tile.weight.size();
  if (!tile.lo.empty() || (!tile.weight.Has(Encoding::kFloat32) && tile.master.empty())) {
    PENSTOCK_CHECK(
        n == tile.lo.size() && tile.master.empty() &&
            (n == 0 || (tile.weight.Has(Encoding::kBFloat16) && tile.lo.Has(Encoding::kInt16))),
        "{} + {} split and {} whole weights", n, tile.lo.size(), tile.master.size());
  }
  if (!tile.master.empty()) {
    PENSTOCK_CHECK(n == tile.master.size() && tile.master.Has(Encoding::kFloat32) &&
                       !tile.weight.Has(Encoding::kFloat32) && !tile.weight.Has(Encoding::kInt16),
                   "{} weights in {} of {} masters", n, ToString(tile.weight.encoding()),
                   tile.master.size());
  }
  CheckMoments("exp_avg", tile.exp_avg, n);
  CheckMoments("exp_avg_sq", tile.exp_avg_sq, n);
  PENSTOCK_CHECK(tile.gradient != nullptr || n == 0, "{} elements without a gradient", n);
  return n;
}

OptimizerTile Part(const OptimizerTile& tile, uint64_t first, uint64_t count) {
  const uint64_t n = ElementCount(tile);
  PENSTOCK_CHECK(first <= n && count <= n - first, "elements {} + {} of {}", first, count, n);
  OptimizerTile part{.weight = tile.weight.Part(first, count),
                     .lo = tile.lo.Part(first, count),
                     .master = tile.master.Part(first, count),
                     .exp_avg = tile.exp_avg.Part(first, count),
                     .exp_avg_sq = tile.exp_avg_sq.Part(first, count),
                     .rounding = {tile.rounding.key, tile.rounding.first_element + first},
                     .gradient = tile.gradient,
                     .gradient_dtype = tile.gradient_dtype};
  if (tile.gradient != nullptr) {
    part.gradient =
        static_cast<const std::byte*>(tile.gradient) + first * SizeOf(tile.gradient_dtype).value;
  }
  return part;
}

}  // namespace penstock::kernels
