#include "zero/shared_sections.h"

#include <algorithm>

namespace penstock::zero {

using offload::ModuleId;
using offload::ShardLayout;

std::vector<SharedSection> SharedSectionsOf(const ShardLayout& layout, ModuleId module) {
  std::vector<SharedSection> shared;
  for (const offload::Section& section : layout.model.SectionsOf(module)) {
    const offload::GroupLayout& group = layout.model.group(section.spans.front().group);
    // The first rank's share is as long as any.
    const uint64_t share = offload::ShareOf(section.range, layout.world_size, 0).elements;
    shared.push_back(
        {.trained = !group.frozen,
         .section = section.range,
         .share = share,
         .mine = offload::ShareOf(section.range, layout.world_size, layout.rank).elements,
         .slot_offset = layout.SlotOffset(module, section.range.begin),
         .slot_share = Bytes{group.planes.weight().block.value / kBlockElements} * share});
  }
  return shared;
}

uint64_t MostTrainedElements(const ShardLayout& layout, ModuleId module) {
  uint64_t elements = 0;
  for (const SharedSection& section : SharedSectionsOf(layout, module)) {
    if (section.trained) elements += section.share;
  }
  return elements;
}

uint64_t WholeGradientElements(const ShardLayout& layout, ModuleId module) {
  uint64_t end = 0;
  for (const SharedSection& section : SharedSectionsOf(layout, module)) {
    if (section.trained) {
      end = std::max(end, section.section.begin + layout.world_size * section.share);
    }
  }
  return end;
}

}  // namespace penstock::zero
