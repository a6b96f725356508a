#include "front/host_home.h"

#include <algorithm>
#include <utility>

#include "front/cuda_driver.h"
#include "front/parallel_copy.h"

namespace penstock::front {

using offload::ModuleId;
using offload::TileId;

Result<std::unique_ptr<HostHome>> HostHome::Create(const Plan& plan,
                                                   const zero::MemoryPlan& memory) {
  std::unique_ptr<HostHome> home(new HostHome(plan));
  zero::ComputeDevice device;  // the caller's CPU, unless memory of a GPU will be given
  if (plan.cuda) device = {.kind = device::Kind::kCuda, .pci_bus_id = CurrentPciBusId()};
  PENSTOCK_ASSIGN(home->engine_,
                  zero::StateEngine::Create(plan.engine, plan.layout, memory, device));
  return home;
}

Status HostHome::BeginStep(double lr, uint64_t t) {
  next_use_ = 0;
  return engine_->BeginStep(lr, t);
}

/// Sets the clock to the start of the next step, regardless of the uses of this one.
Status HostHome::EndUses(Status ended) {
  settled_.assign(settled_.size(), false);
  SetTime(step_start_ + engine_->schedule().length());
  return ended;
}

void HostHome::SetOrder(const zero::StepOrder& order) {
  engine_->SetOrder(order);
  SetTime(0);
}

void HostHome::SetTime(uint64_t step_start) {
  step_start_ = step_start;
  engine_->store().SetTime(step_start);
}

void HostHome::Use(ModuleId unit, bool brings) {
  const offload::Schedule& schedule = engine_->schedule();
  const uint64_t time = step_start_ + std::min(next_use_, schedule.length() - 1);
  if (next_use_ < schedule.length() && schedule.uses[next_use_].module == unit) ++next_use_;
  if (brings) engine_->store().SetTime(time);
}

Status HostHome::CopyWeights(ModuleId unit, const UnitMemory& to, int threads) {
  offload::IdRange<TileId> tiles = plan_.layout.TilesOf(unit);
  while (tiles.size() > 0) {
    PENSTOCK_ASSIGN(const offload::PinnedWeights pinned,
                    engine_->store().PinWeights(tiles, kMaxCopied));
    const size_t count = pinned.weights().size();
    std::vector<Copy> copies;
    for (size_t i = 0; to.wanted() && i < count; ++i) {
      to.AddCopies(plan_.layout, tiles[i], pinned.weights()[i], copies);
    }
    CopyAll(copies, threads);
    tiles = tiles.Part(count, tiles.size() - count);
  }
  Settled(unit);
  return {};
}

Status HostHome::Settle(ModuleId unit) {
  return settled_[offload::Index(unit)] ? Status() : CopyWeights(unit, UnitMemory(nullptr), 1);
}

}  // namespace penstock::front
