#include "zero/norm_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "zero/shared_sections.h"

namespace penstock::zero {
namespace {

using offload::ModuleId;
using offload::ShardLayout;

/// What comes before a rank's block sums: whether all are finite, and its note.
constexpr uint64_t kBefore = 1 + kStepNoteSize;

/// That, and the most block sums that a rank has.
uint64_t PartOfNorm(const ShardLayout& layout) {
  uint64_t elements = 0;
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    elements += MostTrainedElements(layout, module);
  }
  return kBefore + elements / kBlockElements;
}

}  // namespace

Bytes NormExchange::Need(const ShardLayout& layout) {
  return Bytes{sizeof(double)} * PartOfNorm(layout) * layout.world_size;
}

Result<NormExchange> NormExchange::Create(const ShardLayout& layout, device::Device& device,
                                          RankLink& link) {
  NormExchange exchange(link);
  exchange.part_ = PartOfNorm(layout);
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    for (const SharedSection& section : SharedSectionsOf(layout, module)) {
      if (!section.trained) continue;
      std::vector<uint64_t>& blocks = exchange.blocks_.emplace_back();
      for (uint32_t rank = 0; rank < layout.world_size; ++rank) {
        blocks.push_back(offload::ShareOf(section.section, layout.world_size, rank).elements /
                         kBlockElements);
      }
    }
  }
  PENSTOCK_ASSIGN(exchange.device_, device.Allocate(Need(layout), "block sums of all ranks"));
  PENSTOCK_ASSIGN(exchange.host_, device.AllocateHost(Need(layout)));
  return exchange;
}

Result<GradientNorm::Value> NormExchange::Combine(const GradientNorm::Blocks& mine) {
  const Bytes part = Bytes{sizeof(double)} * part_;
  const Bytes begin = part * link_->world().rank;
  double* const own = host_.as<double>() + part_ * link_->world().rank;
  PENSTOCK_CHECK(mine.sums.size() + kBefore <= part_);
  own[0] = mine.finite ? 1 : 0;
  std::ranges::copy(note_, own + 1);
  std::ranges::copy(mine.sums, own + kBefore);
  device::Stream& stream = link_->stream();
  stream.CopyToDevice(device_.data() + begin.value, host_.data() + begin.value, part);
  link_->AllGather(device_.data(), part, "gradient norm");
  stream.CopyToHost(host_.data(), device_.data(), part * link_->world().size);
  PENSTOCK_TRY(stream.Synchronize());
  GradientNorm::Value value;
  std::vector<const double*> next;
  notes_.resize(link_->world().size);
  for (uint32_t rank = 0; rank < link_->world().size; ++rank) {
    const double* const of_rank = host_.as<double>() + part_ * rank;
    value.finite = value.finite && of_rank[0] != 0;
    std::copy_n(of_rank + 1, kStepNoteSize, notes_[rank].begin());
    next.push_back(of_rank + kBefore);
  }
  double sum = 0;
  for (const std::vector<uint64_t>& section : blocks_) {
    for (size_t rank = 0; rank < section.size(); ++rank) {
      for (uint64_t block = 0; block < section[rank]; ++block) sum += *next[rank]++;
    }
  }
  value.norm = std::sqrt(sum);
  return value;
}

}  // namespace penstock::zero
