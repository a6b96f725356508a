#include "sim/link.h"

#include <algorithm>

#include "zero/shared_sections.h"

namespace penstock::sim {

LinkParts GatherParts(const offload::ShardLayout& layout, offload::ModuleId module) {
  LinkParts parts;
  if (layout.world_size == 1) return parts;
  for (const zero::SharedSection& section : zero::SharedSectionsOf(layout, module)) {
    parts.push_back(section.slot_share);
  }
  return parts;
}

LinkParts ExchangeParts(const offload::ShardLayout& layout, offload::ModuleId module, DType dtype) {
  LinkParts parts;
  if (layout.world_size == 1) return parts;
  for (const zero::SharedSection& section : zero::SharedSectionsOf(layout, module)) {
    if (!section.trained) continue;
    for (uint64_t done = 0; done < section.share; done += zero::kExchangePiece) {
      parts.push_back(SizeOf(dtype) * std::min(zero::kExchangePiece, section.share - done));
    }
  }
  return parts;
}

Bytes SentBytes(const LinkParts& parts, uint32_t ranks) {
  Bytes sent;
  for (const Bytes part : parts) sent += part * (ranks - 1);
  return sent;
}

Seconds TimeOf(const LinkSpeed& link, const LinkParts& parts, uint32_t ranks) {
  const Seconds latency = link.latency * static_cast<double>(parts.size());
  if (link.bytes_a_second <= 0) return latency;
  return latency + static_cast<double>(SentBytes(parts, ranks).value) / link.bytes_a_second;
}

}  // namespace penstock::sim
