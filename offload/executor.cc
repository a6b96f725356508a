#include "offload/executor.h"

namespace penstock::offload {
namespace {

/// What a trace shows of waiting for weights: most are there.
constexpr auto kShortestWait = std::chrono::microseconds(20);

}  // namespace

Result<std::unique_ptr<Executor>> Executor::Create(const ShardLayout& layout,
                                                   const Schedule& schedule, device::Device& device,
                                                   device::Stream& compute, TileStore& store,
                                                   ActivityMeter* meter) {
  std::unique_ptr<Executor> executor(new Executor(layout, schedule, compute, store, meter));
  for (const Bytes size : schedule.slot_bytes) {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer, device.Allocate(size, "a slot for parameters"));
    executor->slots_.push_back({.buffer = std::move(buffer)});
  }
  executor->slot_of_.resize(layout.model.modules.size());
  PENSTOCK_ASSIGN(executor->copy_in_, device.CreateStream("copy-in"));
  if (executor->trace_ != nullptr) {
    executor->waits_ = executor->trace_->AddRow(TraceGroup::kWaits, "waits for weights");
  }
  return executor;
}

Result<const std::byte*> Executor::Acquire(ModuleId module) {
  const ScheduledUse& use = schedule_.uses[clock_ % schedule_.length()];
  if (use.module != module) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} was acquired where the model declared {}; acquire modules in the "
                     "order of ModelSpec::step",
                     layout_.module(module).name, layout_.module(use.module).name);
  }
  Slot& slot = slots_[use.slot];
  if (trace_ != nullptr) NameUse(use);
  if (use.fetch) {
    PENSTOCK_CHECK(slot.held == 0,
                   "module {} needs the slot of one that is still acquired; modules that are held "
                   "together must not be marked repeated",
                   layout_.module(module).name);
    device::Event& before_last = last_copies_[next_copy_ % last_copies_.size()];
    before_last.Wait();
    store_.SetTime(clock_);
    PENSTOCK_TRY(Fetch(module, slot));
    before_last = slot.ready;
    ++next_copy_;
    if (use.evicts) ++evictions_;
  }
  ++clock_;
  ++slot.held;
  slot_of_[Index(module)] = use.slot;
  compute_.Wait(slot.ready, device::WaitReason::kData);
  return slot.buffer.data();
}

void Executor::NameUse(const ScheduledUse& use) {
  const std::string name = fmt::format("{} {}, version {}", layout_.module(use.module).name,
                                       use.backward ? "backward" : "forward", store_.version());
  compute_.Name(name);
  copy_in_->Name(name);
}

Status Executor::Fetch(ModuleId module, Slot& slot) {
  copy_in_->Wait(slot.last_use);
  for (const TileId tile : layout_.TilesOf(module)) {
    std::span<const std::byte> weight;
    {
      const TraceSpan span(trace_, waits_, layout_.module(module).name, kShortestWait);
      ActivityScope waiting(meter_, Lane::kDataWait);
      PENSTOCK_ASSIGN(weight, store_.PinWeight(tile));
    }
    std::byte* target =
        slot.buffer.data() + layout_.SlotOffset(module, layout_.tile(tile).begin).value;
    copy_in_->CopyToDevice(target, weight.data(), Bytes{weight.size()});
    if (store_.WeightOnDrive(tile)) {
      copy_in_->Call([this, tile]() { store_.UnpinWeight(tile); });
    }
  }
  slot.ready = copy_in_->Record();
  return {};
}

void Executor::Release(ModuleId module) {
  Slot& slot = slots_[slot_of_[Index(module)]];
  PENSTOCK_CHECK(slot.held > 0, "module {} was released more often than acquired",
                 layout_.module(module).name);
  --slot.held;
  slot.last_use = compute_.Record();
}

void Executor::EndStep() {
  PENSTOCK_CHECK(clock_ % schedule_.length() == 0, "a step ended at use {} of {}",
                 clock_ % schedule_.length(), schedule_.length());
  store_.SetTime(clock_);
}

}  // namespace penstock::offload
