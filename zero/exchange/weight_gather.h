// Completes a module's weights on the device: each rank has brought its share, and gets the
// others'.
//
// A slot has the shares of all ranks one after the other (offload::ShardLayout), so that a section
// is one gather in place.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "offload/executor.h"
#include "offload/layout.h"
#include "zero/exchange/rank_link.h"
#include "zero/shared_sections.h"

namespace penstock::zero {

class WeightGather final : public offload::ShareGatherer {
 public:
  /// The link outlives it.
  WeightGather(const offload::ShardLayout& layout, RankLink& link);

  device::Event Gather(offload::ModuleId module, std::byte* slot,
                       const device::Event& copied) override;

 private:
  struct Module {
    std::string what;
    std::vector<SharedSection> sections;
  };

  RankLink& link_;
  std::vector<Module> modules_;
};

}  // namespace penstock::zero
