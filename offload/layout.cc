#include "offload/layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace penstock::offload {
namespace {

uint64_t RoundUpToBlock(uint64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements * kBlockElements;
}

/// Returns what two ranges have in common: nothing if they do not meet.
Range Meet(const Range& a, const Range& b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  const uint64_t end = std::min(a.end(), b.end());
  return {.begin = begin, .elements = end > begin ? end - begin : 0};
}

/// The most blocks that a rank has of a range.
uint64_t BlocksOfShare(const Range& range, uint32_t world_size) {
  const uint64_t blocks = range.elements / kBlockElements;
  return blocks / world_size + (blocks % world_size == 0 ? 0 : 1);
}

/// Calls `f(span, part)` for each part of a group that a rank has of a module.
template <typename F>
void ForEachPart(const ModelLayout& model, ModuleId module, uint32_t world_size, uint32_t rank,
                 F f) {
  for (const Section& section : model.SectionsOf(module)) {
    const Range share = ShareOf(section.range, world_size, rank);
    for (const GroupSpan& span : section.spans) f(span, Meet(span.range, share));
  }
}

template <typename Size>
Bytes Sum(const ShardLayout& layout, Size size) {
  Bytes sum;
  for (const TileId tile : layout.Tiles()) sum += size(tile);
  return sum;
}

template <typename Size>
Bytes Largest(const ShardLayout& layout, Size size) {
  Bytes largest;
  for (const TileId tile : layout.Tiles()) largest = std::max(largest, size(tile));
  return largest;
}

}  // namespace

std::vector<GroupLayout> DecayGroups(const Planes& planes) {
  return {{.name = "weight decay", .planes = planes, .parameter_group = 0},
          {.name = "no weight decay", .planes = planes, .parameter_group = 1}};
}

std::vector<size_t> ModuleLayout::TensorsByOffset() const {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [this](size_t i) { return tensors[i].offset; });
  return order;
}

ModuleLayout MakeModule(std::string name, const std::vector<TensorShape>& tensors) {
  ModuleLayout module{.name = std::move(name)};
  for (const TensorShape& tensor : tensors) {
    uint64_t elements = 1;
    for (const uint64_t size : tensor.shape) elements *= size;
    module.tensors.push_back({.name = tensor.name,
                              .shape = tensor.shape,
                              .group = tensor.group,
                              .offset = 0,
                              .elements = elements});
  }
  std::vector<size_t> by_group(tensors.size());
  std::iota(by_group.begin(), by_group.end(), size_t{0});
  std::ranges::stable_sort(by_group, {}, [&](size_t i) { return tensors[i].group; });
  for (const size_t i : by_group) {
    TensorLayout& tensor = module.tensors[i];
    if (module.spans.empty() || module.spans.back().group != tensor.group) {
      module.elements = RoundUpToBlock(module.elements);
      module.spans.push_back({.group = tensor.group, .range = {.begin = module.elements}});
    }
    tensor.offset = module.elements;
    module.elements += tensor.elements;
    Range& range = module.spans.back().range;
    range.elements = RoundUpToBlock(module.elements) - range.begin;
  }
  module.elements = RoundUpToBlock(module.elements);
  return module;
}

uint64_t ModelLayout::elements() const {
  uint64_t sum = 0;
  for (const ModuleLayout& module : modules) sum += module.elements;
  return sum;
}

size_t ModelLayout::TensorCount() const {
  size_t count = 0;
  for (const ModuleLayout& module : modules) count += module.tensors.size();
  return count;
}

uint64_t ModelLayout::TrainedElements(ModuleId id) const {
  uint64_t end = 0;
  for (const GroupSpan& span : module(id).spans) {
    if (!group(span.group).frozen) end = span.range.end();
  }
  return end;
}

Section ModelLayout::SectionAt(ModuleId id, size_t i) const {
  const std::span<const GroupSpan> spans = std::span(module(id).spans).subspan(i);
  size_t count = 1;
  while (count < spans.size() &&
         group(spans[count].group).StoredLike(group(spans[count - 1].group))) {
    ++count;
  }
  const uint64_t begin = spans.front().range.begin;
  return {.spans = spans.first(count),
          .range = {.begin = begin, .elements = spans[count - 1].range.end() - begin}};
}

std::vector<Section> ModelLayout::SectionsOf(ModuleId id) const {
  std::vector<Section> sections;
  for (size_t i = 0; i < module(id).spans.size(); i += sections.back().spans.size()) {
    sections.push_back(SectionAt(id, i));
  }
  return sections;
}

uint32_t ModelLayout::RankAt(ModuleId id, uint64_t element, uint32_t world_size) const {
  PENSTOCK_CHECK(element < module(id).elements);
  Section section = SectionAt(id, 0);
  for (size_t i = section.spans.size(); element >= section.range.end(); i += section.spans.size()) {
    section = SectionAt(id, i);
  }
  const uint64_t block = (element - section.range.begin) / kBlockElements;
  return static_cast<uint32_t>(block / BlocksOfShare(section.range, world_size));
}

bool ModelLayout::HasTensorsOf(const ModelLayout& other) const {
  return modules == other.modules &&
         std::ranges::equal(groups, other.groups, [](const auto& a, const auto& b) {
           return a.StoredLike(b) && a.parameter_group == b.parameter_group;
         });
}

Range ShareOf(const Range& range, uint32_t world_size, uint32_t rank) {
  PENSTOCK_CHECK(range.elements % kBlockElements == 0 && rank < world_size);
  const uint64_t share = BlocksOfShare(range, world_size) * kBlockElements;
  const uint64_t begin = std::min(rank * share, range.elements);
  return {.begin = range.begin + begin, .elements = std::min(share, range.elements - begin)};
}

TileId ShardLayout::TileAt(ModuleId id, uint64_t element) const {
  const auto first = tiles.begin() + first_tile[Index(id)];
  const auto after =
      std::upper_bound(first, tiles.begin() + first_tile[Index(id) + 1], element,
                       [](uint64_t value, const TileLayout& tile) { return value < tile.begin; });
  PENSTOCK_CHECK(after != first, "element {} is not of this rank", element);
  const TileId found = TilesOf(id)[static_cast<size_t>(after - first) - 1];
  PENSTOCK_CHECK(element - tile(found).begin < tile(found).elements,
                 "element {} is not of this rank", element);
  return found;
}

Bytes ShardLayout::SlotBytes(ModuleId id) const { return SlotOffset(id, module(id).elements); }

Bytes ShardLayout::SlotOffset(ModuleId id, uint64_t element) const {
  Bytes offset;
  for (size_t i = 0; i < module(id).spans.size();) {
    const Section section = model.SectionAt(id, i);
    i += section.spans.size();
    const Bytes block = model.group(section.spans.front().group).planes.weight().block;
    if (element < section.range.end()) {
      return offset + Bytes{block.value / kBlockElements} * (element - section.range.begin);
    }
    offset += block * (BlocksOfShare(section.range, world_size) * world_size);
  }
  return offset;
}

IdRange<TileId> ShardLayout::TrainedTilesOf(ModuleId id) const {
  uint32_t end = first_tile[Index(id)];
  while (end < first_tile[Index(id) + 1] && !frozen(TileId{end})) ++end;
  return {first_tile[Index(id)], end};
}

DType ShardLayout::GradientDType(TileId id) const {
  return static_cast<DType>(planes(id).weight().encoding);
}

Bytes ShardLayout::GradientBytes(TileId id) const {
  return frozen(id) ? 0_B : SizeOf(GradientDType(id)) * tile(id).elements;
}

uint64_t ShardLayout::shard_elements() const {
  uint64_t sum = 0;
  for (const TileLayout& tile : tiles) sum += tile.elements;
  return sum;
}

Bytes ShardLayout::weight_bytes() const {
  return Sum(*this, [this](TileId id) { return WeightBytes(id); });
}
Bytes ShardLayout::record_bytes() const {
  return Sum(*this, [this](TileId id) { return RecordBytes(id); });
}
Bytes ShardLayout::gradient_bytes() const {
  return Sum(*this, [this](TileId id) { return GradientBytes(id); });
}
Bytes ShardLayout::largest_weight() const {
  return Largest(*this, [this](TileId id) { return WeightBytes(id); });
}
Bytes ShardLayout::largest_record() const {
  return Largest(*this, [this](TileId id) { return RecordBytes(id); });
}

size_t ShardLayout::most_tiles() const {
  size_t most = 0;
  for (const ModuleId id : Ids<ModuleId>(model.modules.size())) {
    most = std::max(most, TileCount(id));
  }
  return most;
}

uint64_t CountTiles(const ModelLayout& model, uint64_t tile_elements, uint32_t world_size,
                    uint32_t rank) {
  uint64_t tiles = 0;
  for (const ModuleId id : Ids<ModuleId>(model.modules.size())) {
    ForEachPart(model, id, world_size, rank, [&](const GroupSpan&, const Range& part) {
      tiles += part.elements / tile_elements + (part.elements % tile_elements == 0 ? 0 : 1);
    });
  }
  return tiles;
}

ShardLayout MakeShard(ModelLayout model, uint64_t tile_elements, uint32_t world_size,
                      uint32_t rank) {
  PENSTOCK_CHECK(tile_elements > 0 && tile_elements % kBlockElements == 0);
  ShardLayout shard{.model = std::move(model),
                    .world_size = world_size,
                    .rank = rank,
                    .tile_elements = tile_elements};
  for (const ModuleId id : Ids<ModuleId>(shard.model.modules.size())) {
    shard.first_tile.push_back(static_cast<uint32_t>(shard.tiles.size()));
    ForEachPart(shard.model, id, world_size, rank, [&](const GroupSpan& span, const Range& part) {
      for (uint64_t done = 0; done < part.elements; done += tile_elements) {
        shard.tiles.push_back({.module = id,
                               .begin = part.begin + done,
                               .elements = std::min(tile_elements, part.elements - done),
                               .group = span.group});
      }
    });
  }
  shard.first_tile.push_back(static_cast<uint32_t>(shard.tiles.size()));
  return shard;
}

}  // namespace penstock::offload
