#include "zero/states/trust_sums.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/state/optimizer.h"
#include "zero/shared_sections.h"
#include "zero/states/tensor_figures.h"

namespace penstock::zero {

using kernels::TensorPart;
using kernels::TrustSums;
using offload::Index;
using offload::ModuleId;
using offload::ShardLayout;
using offload::TileId;

bool TakesTwoPasses(const config::Config& config) {
  return kernels::HasTrustRatio(config.optimizer.hyper);
}

TrustBlocks::TrustBlocks(const ShardLayout& layout)
    : tensors_(layout.model.TensorCount()), runs_(RunsOf(layout)) {
  uint64_t sums = 0;
  for (const TileId tile : layout.Tiles()) {
    offsets_.push_back(sums);
    if (layout.frozen(tile)) continue;
    const offload::TileLayout& place = layout.tile(tile);
    for (const TensorPart& part : PartsOf(layout.module(tile), place.begin, place.elements)) {
      sums += part.blocks();
    }
  }
  offsets_.push_back(sums);
  sums_.resize(sums);
}

std::vector<TrustBlocks::Run> TrustBlocks::RunsOf(const ShardLayout& layout) {
  std::vector<Run> runs;
  size_t first_tensor = 0;
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    const offload::ModuleLayout& module = layout.module(id);
    for (const SharedSection& section : SharedSectionsOf(layout, id)) {
      if (!section.trained) continue;
      for (uint32_t rank = 0; rank < layout.world_size; ++rank) {
        const offload::Range share = offload::ShareOf(section.section, layout.world_size, rank);
        for (const TensorPart& part : PartsOf(module, share.begin, share.elements)) {
          runs.push_back({rank, first_tensor + part.tensor, part.blocks()});
        }
      }
    }
    first_tensor += module.tensors.size();
  }
  return runs;
}

Bytes TrustBlocks::Need(const ShardLayout& layout) {
  return Bytes{sizeof(TrustSums)} * (Most(layout) + 2 * layout.model.TensorCount()) +
         Bytes{sizeof(Run)} * RunsOf(layout).size() + Bytes{sizeof(uint64_t)} * layout.tiles.size();
}

uint64_t TrustBlocks::Most(const ShardLayout& layout) {
  std::vector<uint64_t> sums(layout.world_size);
  for (const Run& run : RunsOf(layout)) sums[run.rank] += run.blocks;
  return std::ranges::max(sums);
}

std::span<TrustSums> TrustBlocks::OfTile(TileId tile) {
  const uint64_t begin = offsets_[Index(tile)];
  return std::span(sums_).subspan(begin, offsets_[Index(tile) + 1] - begin);
}

std::vector<TrustSums> TrustBlocks::ByTensor(std::span<const TrustSums* const> of_ranks) const {
  std::vector<TrustSums> of_tensors(tensors_);
  std::vector<const TrustSums*> next(of_ranks.begin(), of_ranks.end());
  for (const Run& run : runs_) {
    for (uint64_t i = 0; i < run.blocks; ++i) of_tensors[run.tensor].Add(*next[run.rank]++);
  }
  return of_tensors;
}

}  // namespace penstock::zero
