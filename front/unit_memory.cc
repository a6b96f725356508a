#include "front/unit_memory.h"

#include <algorithm>
#include <cstdint>

namespace penstock::front {

void UnitMemory::AddCopies(const offload::ShardLayout& layout, offload::TileId tile,
                           std::span<const std::byte> weights, std::vector<Copy>& copies) const {
  const offload::TileLayout& place = layout.tile(tile);
  if (slot_ != nullptr) {
    const Bytes offset = layout.SlotOffset(place.module, place.begin);
    copies.push_back({slot_ + offset.value, weights});
    return;
  }
  const uint64_t element = weights.size() / place.elements;
  const std::vector<offload::TensorLayout>& tensors = layout.module(tile).tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const offload::TensorLayout& tensor = tensors[i];
    const uint64_t begin = std::max(tensor.offset, place.begin);
    const uint64_t end = std::min(tensor.offset + tensor.elements, place.begin + place.elements);
    if (begin >= end) continue;
    copies.push_back({tensors_[i] + (begin - tensor.offset) * element,
                      weights.subspan((begin - place.begin) * element, (end - begin) * element)});
  }
}

}  // namespace penstock::front
