#include "kernels/state/figures.h"

#include <algorithm>

namespace penstock::kernels {
namespace {

uint64_t BlockBorderFrom(uint64_t element) {
  return (element + kBlockElements - 1) / kBlockElements * kBlockElements;
}

}  // namespace

std::vector<TensorPart> TensorParts(std::span<const TensorRange> tensors, uint64_t begin,
                                    uint64_t end) {
  std::vector<TensorPart> parts;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    uint64_t from = std::max(begin, tensors[tensor].begin);
    const uint64_t to = std::min(end, tensors[tensor].end);
    const auto cut = [&](uint64_t at) {
      if (from >= at) return;
      parts.push_back({tensor, from, at});
      from = at;
    };
    if (from >= to) continue;
    cut(std::min(to, BlockBorderFrom(from)));
    cut(to / kBlockElements * kBlockElements);
    cut(to);
  }
  return parts;
}

}  // namespace penstock::kernels
