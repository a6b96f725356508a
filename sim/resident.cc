#include "sim/resident.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::sim {
namespace {

using offload::Index;
using offload::ModuleId;

class Step {
 public:
  Step(const ResidentPlan& plan, const LinkSpeed& link)
      : plan_(plan),
        link_speed_(link),
        updated_(plan.layout.model.modules.size()),
        whole_(updated_.size()),
        sent_(updated_.size()),
        sent_shared_(plan.exchange.repeated_buffers) {}

  Seconds Run() {
    Update();
    for (size_t use = 0; use < plan_.model.step.size(); ++use) Use(use);
    return std::max(compute_, link_);
  }

 private:
  /// One module after the other.
  void Update() {
    const auto elements = static_cast<double>(plan_.layout.shard_elements());
    for (const ModuleId module : offload::Ids<ModuleId>(updated_.size())) {
      for (const offload::TileId tile : plan_.layout.TilesOf(module)) {
        compute_ += plan_.update * static_cast<double>(plan_.layout.tile(tile).elements) / elements;
      }
      updated_[Index(module)] = compute_;
    }
    if (!plan_.overlap) std::ranges::fill(updated_, compute_);
  }

  void Use(size_t index) {
    const zero::ModuleUse& use = plan_.model.step[index];
    if (!whole_[Index(use.module)]) {
      whole_[Index(use.module)] = true;
      compute_ = std::max(
          compute_, OverLink(updated_[Index(use.module)], GatherParts(plan_.layout, use.module)));
    }
    const uint64_t parts = use.backward ? plan_.exchange.ExchangesPerStep(plan_.micro_batches) : 1;
    for (uint64_t part = 0; part < parts; ++part) {
      Seconds* const sent = use.backward ? &SentOfBuffer(use.module) : nullptr;
      if (sent != nullptr) compute_ = std::max(compute_, *sent);
      compute_ += plan_.compute[index] / static_cast<double>(parts);
      if (sent == nullptr) continue;
      *sent = OverLink(compute_, ExchangeParts(plan_.layout, use.module, plan_.exchange.dtype));
    }
  }

  /// Returns when the buffer of the module's next gradient was last sent.
  Seconds& SentOfBuffer(ModuleId module) {
    if (!plan_.model.modules[Index(module)].repeated) return sent_[Index(module)];
    return sent_shared_[turn_++ % sent_shared_.size()];
  }

  Seconds OverLink(Seconds ready, const LinkParts& parts) {
    if (parts.empty()) return ready;
    link_ = std::max(link_, ready) + TimeOf(link_speed_, parts, plan_.layout.world_size);
    return link_;
  }

  const ResidentPlan& plan_;
  const LinkSpeed& link_speed_;
  Seconds compute_ = 0;  ///< time when it has finished its work so far
  Seconds link_ = 0;
  std::vector<Seconds> updated_;  ///< time when each module is updated
  std::vector<bool> whole_;
  std::vector<Seconds> sent_;         ///< time when each module's own gradient buffer is sent
  std::vector<Seconds> sent_shared_;  ///< the same for the buffers that repeated modules share
  uint64_t turn_ = 0;
};

}  // namespace

Seconds ResidentStep(const ResidentPlan& plan, const LinkSpeed& link) {
  PENSTOCK_CHECK(plan.compute.size() == plan.model.step.size());
  return Step(plan, link).Run();
}

}  // namespace penstock::sim
