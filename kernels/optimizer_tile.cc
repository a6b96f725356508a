#include "kernels/optimizer_tile.h"

#include <cstddef>
#include <string_view>

#include "base/check.h"

namespace penstock::kernels {
namespace {

void CheckMoments(std::string_view name, uint64_t fp32, uint64_t bf16, uint64_t n) {
  PENSTOCK_CHECK(fp32 == 0 || fp32 == n, "{} {} in fp32 for {} weights", fp32, name, n);
  PENSTOCK_CHECK(bf16 == 0 || bf16 == n, "{} {} in bf16 for {} weights", bf16, name, n);
}

}  // namespace

uint64_t ElementCount(const OptimizerTile& tile) {
  const bool split = tile.weight.empty();
  const uint64_t n = split ? tile.weight_hi.size() : tile.weight.size();
  PENSTOCK_CHECK(
      tile.weight_hi.size() == (split ? n : 0) && tile.weight_lo.size() == tile.weight_hi.size(),
      "{} + {} split and {} whole weights", tile.weight_hi.size(), tile.weight_lo.size(),
      tile.weight.size());
  PENSTOCK_CHECK(tile.weight_bf16.empty() || tile.weight_fp16.empty(),
                 "a tile with 16-bit weights of two kinds");
  for (const uint64_t copies : {tile.weight_bf16.size(), tile.weight_fp16.size()}) {
    PENSTOCK_CHECK(copies == 0 || (copies == n && !split), "{} 16-bit copies of {} {} weights",
                   copies, n, split ? "split" : "whole");
  }
  CheckMoments("exp_avg", tile.exp_avg.size(), tile.exp_avg_bf16.size(), n);
  CheckMoments("exp_avg_sq", tile.exp_avg_sq.size(), tile.exp_avg_sq_bf16.size(), n);
  PENSTOCK_CHECK(tile.gradient != nullptr || n == 0, "{} elements without a gradient", n);
  return n;
}

OptimizerTile Part(const OptimizerTile& tile, uint64_t first, uint64_t count) {
  const uint64_t n = ElementCount(tile);
  PENSTOCK_CHECK(first <= n && count <= n - first, "elements {} + {} of {}", first, count, n);
  const auto cut = [&](auto span) { return span.empty() ? span : span.subspan(first, count); };
  OptimizerTile part{.weight_hi = cut(tile.weight_hi),
                     .weight_lo = cut(tile.weight_lo),
                     .weight = cut(tile.weight),
                     .exp_avg = cut(tile.exp_avg),
                     .exp_avg_sq = cut(tile.exp_avg_sq),
                     .exp_avg_bf16 = cut(tile.exp_avg_bf16),
                     .exp_avg_sq_bf16 = cut(tile.exp_avg_sq_bf16),
                     .rounding = {tile.rounding.key, tile.rounding.first_element + first},
                     .weight_bf16 = cut(tile.weight_bf16),
                     .weight_fp16 = cut(tile.weight_fp16),
                     .gradient = tile.gradient,
                     .gradient_dtype = tile.gradient_dtype};
  if (tile.gradient != nullptr) {
    part.gradient =
        static_cast<const std::byte*>(tile.gradient) + first * SizeOf(tile.gradient_dtype).value;
  }
  return part;
}

}  // namespace penstock::kernels
