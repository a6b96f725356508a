#include "kernels/state/state_parts.h"

#include "base/check.h"

namespace penstock::kernels {

StatePart MakeStatePart(const OptimizerTile& tile, uint64_t first, uint64_t count,
                        uint64_t tensor) {
  const OptimizerTile part = Part(tile, first, count);
  return {.weight = part.weight.data(),
          .lo = part.lo.data(),
          .master = part.master.data(),
          .exp_avg = part.exp_avg.data(),
          .exp_avg_sq = part.exp_avg_sq.data(),
          .gradient = static_cast<const std::byte*>(part.gradient),
          .elements = count,
          .first_element = part.rounding.first_element,
          .tensor = tensor};
}

StateParts MakeStateParts(const OptimizerTile& kind, std::span<StatePart> parts) {
  StateParts table{.kind = kind, .count = parts.size()};
  for (StatePart& part : parts) {
    part.first_block = table.blocks;
    table.blocks += part.blocks();
    if (part.tensor == kNoTensor) continue;
    table.measured_blocks += part.blocks();
    PENSTOCK_CHECK(table.measured_blocks == table.blocks, "padding comes before a tensor");
  }
  return table;
}

OptimizerTile TileOf(const OptimizerTile& kind, const StatePart& part, uint64_t first,
                     uint64_t count) {
  PENSTOCK_CHECK(first <= part.elements && count <= part.elements - first, "elements {} + {} of {}",
                 first, count, part.elements);
  const auto view = [&](const PlaneView& of_kind, std::byte* data) {
    if (data == nullptr) return PlaneView();
    return PlaneView(of_kind.encoding(), data, part.elements).Part(first, count);
  };
  return {.weight = view(kind.weight, part.weight),
          .lo = view(kind.lo, part.lo),
          .master = view(kind.master, part.master),
          .exp_avg = view(kind.exp_avg, part.exp_avg),
          .exp_avg_sq = view(kind.exp_avg_sq, part.exp_avg_sq),
          .rounding = {.first_element = part.first_element + first},
          .gradient = part.gradient + first * SizeOf(kind.gradient_dtype).value,
          .gradient_dtype = kind.gradient_dtype};
}

}  // namespace penstock::kernels
