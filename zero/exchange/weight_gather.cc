#include "zero/exchange/weight_gather.h"

namespace penstock::zero {

using offload::ModuleId;

WeightGather::WeightGather(const offload::ShardLayout& layout, RankLink& link) : link_(link) {
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    modules_.push_back({.what = "weights of " + layout.module(module).name,
                        .sections = SharedSectionsOf(layout, module)});
  }
}

device::Event WeightGather::Gather(ModuleId module, std::byte* slot, const device::Event& copied) {
  const Module& entry = modules_[offload::Index(module)];
  link_.stream().Name(entry.what);
  link_.stream().Wait(copied);
  for (const SharedSection& section : entry.sections) {
    link_.AllGather(slot + section.slot_offset.value, section.slot_share, entry.what);
  }
  return link_.stream().Record();
}

}  // namespace penstock::zero
