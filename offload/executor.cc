#include "offload/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// What a trace shows of waiting for weights: most are there.
constexpr auto kMinWait = std::chrono::microseconds(20);

/// Small tiles are copied together, up to so much: for each by itself, threads would be woken more
/// often than bytes are worth. More would only begin the copies later.
constexpr Bytes kMaxAtOnce = 256_KiB;

}  // namespace

Result<std::unique_ptr<Executor>> Executor::Create(const ShardLayout& layout,
                                                   const Schedule& schedule, device::Device& device,
                                                   device::Stream& compute, TileStore& store,
                                                   const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(layout, compute, store, options));
  for (const Bytes size : schedule.slot_bytes) {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer, device.Allocate(size, "a slot for parameters"));
    executor->slots_.push_back({.buffer = std::move(buffer)});
  }
  executor->slot_of_.resize(layout.model.modules.size());
  executor->Plan(schedule);
  PENSTOCK_ASSIGN(executor->copy_in_, device.CreateStream("copy-in"));
  if (executor->trace_ != nullptr) {
    executor->waits_ = executor->trace_->AddRow(TraceGroup::kWaits, "waits for weights");
  }
  return executor;
}

void Executor::Plan(const Schedule& schedule) {
  schedule_ = &schedule;
  for (Slot& slot : slots_) slot.shared = true;
  for (const std::optional<uint32_t>& own : schedule.own_slot) {
    if (own) slots_[*own].shared = false;
  }
  planned_at_.assign(layout_.model.modules.size(), {});
  for (uint64_t use = 0; use < schedule.length(); ++use) {
    planned_at_[Index(schedule.uses[use].module)].push_back(use);
  }
}

void Executor::SetSchedule(const Schedule& schedule) {
  PENSTOCK_CHECK(std::ranges::equal(schedule.slot_bytes, slots_, {}, {},
                                    [](const Slot& slot) { return slot.buffer.size(); }),
                 "another schedule has other slots on the device");
  Plan(schedule);
  step_start_ = 0;
  use_ = 0;
  for (Slot& slot : slots_) slot.current = false;
}

Result<const std::byte*> Executor::Acquire(ModuleId module) {
  const ScheduledUse* planned = PlannedUse(module);
  if (trace_ != nullptr) {
    const std::string name = NameOfUse(module, planned);
    compute_.Name(name);
    copy_in_->Name(name);
  }
  Slot* slot = SlotOf(module);
  const bool there = slot != nullptr && slot->current;
  if (slot == nullptr) {
    PENSTOCK_ASSIGN(slot, ChooseSlot(module, planned));
  } else if (!there) {
    slot->last_use = compute_.Record();  // a holder from another step may still use it
  }
  if (!there) PENSTOCK_TRY(Fetch(module, *slot));
  if (planned == nullptr || (!planned->fetch && !there)) ++late_uses_;
  if (planned != nullptr) ++use_;
  ++slot->held;
  slot->acquired_at = ++acquired_;
  compute_.Wait(slot->ready, device::WaitReason::kData);
  return slot->buffer.data();
}

Status Executor::FetchAhead() {
  if (!schedule_->FetchesAhead(use_)) return {};
  const ScheduledUse& next = schedule_->uses[use_];
  Slot& slot = slots_[next.slot];
  if (slot.held > 0 || SlotOf(next.module) != nullptr) return {};
  if (trace_ != nullptr) copy_in_->Name(NameOfUse(next.module, &next));
  return Fetch(next.module, slot);
}

/// The use that the plan names next, if it is of this module.
const ScheduledUse* Executor::PlannedUse(ModuleId module) const {
  if (use_ == schedule_->length() || schedule_->uses[use_].module != module) return nullptr;
  return &schedule_->uses[use_];
}

/// Returns the next planned use of the module in this step; the step's length if there is none.
uint64_t Executor::NextUse(ModuleId module) const {
  const std::vector<uint64_t>& uses = planned_at_[Index(module)];
  const auto next = std::ranges::lower_bound(uses, use_);
  return next == uses.end() ? schedule_->length() : *next;
}

/// Returns the slot that has the module's weights, or in which it is held; null if there is none.
Executor::Slot* Executor::SlotOf(ModuleId module) {
  const std::optional<uint32_t> at = slot_of_[Index(module)];
  if (!at) return nullptr;
  Slot& slot = slots_[*at];
  return slot.module == module && (slot.current || slot.held > 0) ? &slot : nullptr;
}

/// Returns a free slot: its own, the planned one, or the shared one whose weights are needed last;
/// of those not needed any more, the least recently used.
Result<Executor::Slot*> Executor::ChooseSlot(ModuleId module, const ScheduledUse* planned) {
  if (!schedule_->own_slot.empty()) {
    if (const auto own = schedule_->own_slot[Index(module)]) return &slots_[*own];
  }
  if (planned != nullptr && slots_[planned->slot].held == 0) return &slots_[planned->slot];
  const Bytes size = layout_.SlotBytes(module);
  Slot* best = nullptr;
  std::pair<uint64_t, uint64_t> best_rank;
  for (Slot& slot : slots_) {
    if (!slot.shared || slot.held > 0 || slot.buffer.size() < size) continue;
    const std::pair rank(slot.current ? NextUse(*slot.module) : schedule_->length(),
                         std::numeric_limits<uint64_t>::max() - slot.acquired_at);
    if (best == nullptr || rank > best_rank) {
      best = &slot;
      best_rank = rank;
    }
  }
  if (best != nullptr) return best;
  return MakeError(ErrorCode::kInvalidArgument,
                   "module {} was acquired while others hold every slot that it could take; more "
                   "modules are held at once than there are slots, release one first",
                   layout_.module(module).name);
}

std::string Executor::NameOfUse(ModuleId module, const ScheduledUse* planned) const {
  const char* direction = "out of order";
  if (planned != nullptr) direction = planned->backward ? "backward" : "forward";
  return fmt::format("{} {}, version {}", layout_.module(module).name, direction, store_.version());
}

Status Executor::Fetch(ModuleId module, Slot& slot) {
  if (slot.current && NextUse(*slot.module) < schedule_->length()) ++evictions_;
  slot.module = module;
  slot.current = false;
  slot_of_[Index(module)] = static_cast<uint32_t>(&slot - slots_.data());
  device::Event& before_last = last_copies_[next_copy_ % last_copies_.size()];
  before_last.Wait();
  store_.SetTime(step_start_ + std::min(use_, schedule_->length() - 1));
  copy_in_->Wait(slot.last_use);
  IdRange<TileId> tiles = layout_.TilesOf(module);
  while (tiles.size() > 0) {
    PENSTOCK_ASSIGN(const size_t copied, CopyTiles(module, tiles, slot));
    tiles = tiles.Part(copied, tiles.size() - copied);
  }
  slot.ready = copy_in_->Record();
  if (gatherer_ != nullptr) slot.ready = gatherer_->Gather(module, slot.buffer.data(), slot.ready);
  slot.current = true;
  before_last = slot.ready;
  ++next_copy_;
  return {};
}

/// Copies the first of the tiles, and those behind it whose weights are there. Returns how many.
Result<size_t> Executor::CopyTiles(ModuleId module, IdRange<TileId> tiles, Slot& slot) {
  PinnedWeights pinned;
  {
    const TraceSpan span(trace_, waits_, layout_.module(module).name, kMinWait);
    ActivityScope waiting(meter_, Lane::kDataWait);
    PENSTOCK_ASSIGN(pinned, store_.PinWeights(tiles, kMaxAtOnce));
  }
  const size_t count = pinned.weights().size();
  for (size_t i = 0; i < count; ++i) {
    const std::span<const std::byte> weight = pinned.weights()[i];
    const Bytes offset = layout_.SlotOffset(module, layout_.tile(tiles[i]).begin);
    copy_in_->CopyToDevice(slot.buffer.data() + offset.value, weight.data(), Bytes{weight.size()});
  }
  if (pinned.holds_blocks()) {
    // A call can be copied, and a lease cannot: its copies share one.
    auto lease = std::make_shared<PinnedWeights>(std::move(pinned));
    copy_in_->Call([lease = std::move(lease)]() { lease->Release(); });
  }
  return count;
}

void Executor::Release(ModuleId module) {
  const std::optional<uint32_t> at = slot_of_[Index(module)];
  PENSTOCK_CHECK(at && slots_[*at].module == module && slots_[*at].held > 0,
                 "module {} was released more often than acquired", layout_.module(module).name);
  Slot& slot = slots_[*at];
  --slot.held;
  slot.last_use = compute_.Record();
}

void Executor::EndStep() {
  step_start_ += schedule_->length();
  use_ = 0;
  for (Slot& slot : slots_) slot.current = false;
  store_.SetTime(step_start_);
}

}  // namespace penstock::offload
