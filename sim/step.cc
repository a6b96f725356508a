#include "sim/step.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "offload/tile_policy.h"
#include "offload/tile_spread.h"
#include "sim/cores.h"
#include "sim/stream.h"
#include "zero/plan/staging_ring.h"

namespace penstock::sim {
namespace {

using offload::Index;
using offload::ModuleId;
using offload::ScheduledUse;
using offload::TileAction;
using offload::TileId;
using offload::TilePolicy;

class Engine {
 public:
  Engine(const StepPlan& plan, const Machine& machine)
      : plan_(plan),
        machine_(machine),
        cores_(clock_, machine.cores),
        policy_(plan.layout, plan.schedule, policy_options_),
        ranks_(plan.layout.world_size),
        slots_(plan.schedule.slot_bytes.size()),
        wholes_(plan.exchange.repeated_buffers),
        staging_(plan.staging),
        exchanges_(plan.exchange.ExchangesPerStep(plan.micro_batches)),
        reduced_at_(plan.schedule.length()),
        free_threads_(machine.optimizer_threads) {
    PENSTOCK_CHECK(plan.compute.size() == plan.schedule.length() && machine.optimizer_threads > 0 &&
                   machine.drives > 0);
    for (size_t i = 0; i < machine.drives; ++i) drives_.emplace_back(clock_, machine.drive);
    // Follows the order of `gradients`, none before its module's last use.
    uint64_t reached = 0;
    for (const ModuleId module : plan.gradients) {
      for (uint64_t use = reached; use < plan.schedule.length(); ++use) {
        if (plan.schedule.uses[use].module == module) reached = use;
      }
      reduced_at_[reached].push_back(module);
    }
  }

  std::vector<StepTime> Run(uint64_t steps) {
    last_step_ = steps;
    BeginStep();
    while (times_.size() < steps) PENSTOCK_CHECK(clock_.Step(), "no thread can continue");
    return std::move(times_);
  }

 private:
  struct Slot {
    std::optional<ModuleId> module;  ///< module of its weights in this step
    Event ready;                     ///< recorded after the last copy into it
    Event last_use;                  ///< recorded after the last kernel that read it
  };

  const offload::Schedule& schedule() const { return plan_.schedule; }
  const ScheduledUse& use() const { return schedule().uses[use_]; }
  double ElementsOf(TileId tile) const {
    return static_cast<double>(plan_.layout.tile(tile).elements);
  }

  // The device.

  /// Works on this many threads of the CPU, or on the device if it has its own processor.
  void OnDevice(Seconds time, int threads, Stream::Done done) {
    if (machine_.compute_threads > 0) {
      cores_.Work(time, threads, std::move(done));
    } else {
      clock_.After(time, std::move(done));
    }
  }
  void Compute(Seconds time, Stream::Done done) {
    OnDevice(time, machine_.compute_threads, std::move(done));
  }
  void Copy(Bytes size, Stream::Done done) {
    OnDevice(static_cast<double>(size.value) * machine_.copy_byte, 1, std::move(done));
  }

  // The thread that feeds it.

  void BeginStep() {
    use_ = 0;
    turn_ = 0;
    for (Slot& slot : slots_) slot.module.reset();
    sums_missing_ = schedule().update_order.size();
    step_begin_ = clock_.now();
    bytes_begin_ = Moved();
    NextUse();
  }

  void NextUse() {
    if (use_ == schedule().length()) {
      EndStep();
    } else if (!use().fetch || slots_[use().slot].module == use().module) {
      ComputeUse();
    } else {
      Fetch(use_, [this]() { ComputeUse(); });
    }
  }

  /// Brings the weights of a use of this step to the device, and continues with `then` when that is
  /// enqueued.
  void Fetch(uint64_t use, std::function<void()> then) {
    fetched_use_ = use;
    after_fetch_ = std::move(then);
    // No more than two modules wait to be copied.
    last_copies_[next_copy_ % last_copies_.size()].Then([this]() {
      policy_.SetTime(time_ - use_ + fetched_use_);
      CarryOut();
      copy_in_.Wait(slots_[FetchedUse().slot].last_use);
      next_tile_ = 0;
      PinTiles();
    });
  }
  const ScheduledUse& FetchedUse() const { return schedule().uses[fetched_use_]; }

  void PinTiles() {
    const auto tiles = plan_.layout.TilesOf(FetchedUse().module);
    while (next_tile_ < tiles.size()) {
      const TileId tile = tiles[next_tile_];
      if (!policy_.TryPin(tile)) {
        CarryOut();
        return;
      }
      ++next_tile_;
      copy_in_.Work([this, tile](Stream::Done done) {
        Copy(plan_.layout.WeightBytes(tile), std::move(done));
      });
      copy_in_.Work([this, tile](const Stream::Done& done) {
        policy_.Unpin(tile);
        CarryOut();
        done();
      });
    }
    Slot& slot = slots_[FetchedUse().slot];
    slot.module = FetchedUse().module;
    slot.ready = copy_in_.Record();
    if (ranks_ > 1) {
      comm_.Wait(slot.ready);
      slot.ready = OverLink(GatherParts(plan_.layout, FetchedUse().module));
    }
    last_copies_[next_copy_++ % last_copies_.size()] = slot.ready;
    std::exchange(after_fetch_, nullptr)();
  }

  void ComputeUse() {
    compute_.Wait(slots_[use().slot].ready);
    if (ranks_ == 1 || !use().backward) {
      ComputePart(1);
      EndUse();
      return;
    }
    // The first exchange comes after the next module's gather.
    BeginGradient();
    ComputePart(exchanges_);
    if (schedule().FetchesAhead(use_ + 1) && !OnDeviceAlready(use_ + 1)) {
      Fetch(use_ + 1, [this]() { ExchangeGradients(); });
    } else {
      ExchangeGradients();
    }
  }
  bool OnDeviceAlready(uint64_t use) const {
    const ScheduledUse& planned = schedule().uses[use];
    return slots_[planned.slot].module == planned.module;
  }
  /// Computes one of this many parts of the use.
  void ComputePart(uint64_t parts) {
    compute_.Work([this, time = plan_.compute[use_] / static_cast<double>(parts)](
                      Stream::Done done) { Compute(time, std::move(done)); });
  }
  void EndUse() {
    slots_[use().slot].last_use = compute_.Record();
    for (const ModuleId module : reduced_at_[use_]) SendGradients(module);
    ++use_;
    ++time_;
    NextUse();
  }

  // The other ranks.

  /// Modules with a slot of their own have a gradient buffer of their own.
  Event& WholeGradient() {
    const auto& own = schedule().own_slot;
    const size_t module = Index(use().module);
    if (!own.empty() && own[module]) return own_wholes_[module];
    return wholes_[turn_ % wholes_.size()];
  }
  void BeginGradient() { compute_.Wait(WholeGradient()); }
  void ExchangeGradients() {
    for (uint64_t exchange = 0; exchange < exchanges_; ++exchange) {
      if (exchange > 0) {
        BeginGradient();
        ComputePart(exchanges_);
      }
      comm_.Wait(compute_.Record());
      WholeGradient() = OverLink(ExchangeParts(plan_.layout, use().module, plan_.exchange.dtype));
      ++turn_;
    }
    EndUse();
  }
  Event OverLink(const LinkParts& parts) {
    comm_.Work([this, time = TimeOf(machine_.link, parts, ranks_)](Stream::Done done) {
      clock_.After(time, std::move(done));
    });
    return comm_.Record();
  }

  /// Through the staging buffer, by the engine's own rule.
  void SendGradients(ModuleId module) {
    Stream& sums = ranks_ > 1 ? comm_ : compute_;
    for (const zero::StagedBatches& staged :
         zero::StageModule(plan_.layout, module, staging_.size())) {
      if (const auto room = staging_.Reserve(staged.size); room.free) sums.Wait(*room.free);
      copy_out_.Wait(sums.Record());
      for (const zero::GradientBatch& batch : staged.batches) {
        for (const TileId tile : batch.tiles) CopyOut(tile);
      }
      staging_.Take(staged.size, copy_out_.Record());
    }
  }
  void CopyOut(TileId tile) {
    copy_out_.Work([this, tile](Stream::Done done) {
      Copy(plan_.layout.GradientBytes(tile), std::move(done));
    });
    copy_out_.Work([this, tile](const Stream::Done& done) {
      arrived_.push_back(tile);
      GiveOutWork();
      done();
    });
  }

  /// The step is decided on when everything is computed, copied and summed.
  void EndStep() {
    policy_.SetTime(time_);
    CarryOut();
    compute_.Record().Then([this]() {
      copy_in_.Record().Then([this]() {
        comm_.Record().Then([this]() { copy_out_.Record().Then([this]() { Decide(); }); });
      });
    });
  }

  void Decide() {
    deciding_ = sums_missing_ > 0;
    if (deciding_) return;
    first_pass_ = plan_.store.passes == 2 && !schedule().update_order.empty();
    if (plan_.updates == zero::UpdateStart::kStepEnd) BeginUpdates();
    if (!first_pass_) FinishStep();
  }

  /// Begins updates, or their first pass, which overlaps nothing.
  void BeginUpdates() {
    for (const TileId tile : schedule().update_order) policy_.Begin(tile);
    if (first_pass_) policy_.SetDraining(true);
    CarryOut();
  }
  void EndFirstPass() {
    first_pass_ = false;
    policy_.SetDraining(false);
    BeginUpdates();
    FinishStep();
  }

  void FinishStep() {
    const auto [read, written] = Moved();
    times_.push_back({.step = clock_.now() - step_begin_,
                      .read_bytes = read - bytes_begin_.first,
                      .write_bytes = written - bytes_begin_.second});
    if (times_.size() < last_step_) BeginStep();
  }

  // The optimizer's threads.

  void GiveOutWork() {
    while (free_threads_ > 0) {
      if (!arrived_.empty()) {
        const TileId tile = arrived_.front();
        arrived_.pop_front();
        --free_threads_;
        cores_.Work(ElementsOf(tile) * machine_.norm_element, 1, [this, tile]() { Summed(tile); });
      } else if (const auto tile = policy_.TakeUpdate()) {
        --free_threads_;
        cores_.Work(ElementsOf(*tile) * machine_.update_element, 1,
                    [this, tile = *tile]() { Updated(tile); });
      } else {
        return;
      }
    }
  }

  void Summed(TileId tile) {
    ++free_threads_;
    if (plan_.updates == zero::UpdateStart::kGradient) policy_.Begin(tile);
    --sums_missing_;
    CarryOut();
    if (deciding_) Decide();
  }

  void Updated(TileId tile) {
    ++free_threads_;
    if (first_pass_) {
      policy_.FinishFirstPass(tile);
      CarryOut();
      return;
    }
    policy_.FinishUpdate(tile);
    const auto write = [&](Bytes size, void (TilePolicy::*done)(TileId)) {
      Submit(aio::Operation::kWrite, size, aio::Priority::kWriteBack, tile, done);
    };
    const offload::TileHome& home = policy_options_.homes[Index(tile)];
    if (home.weight_on_drive) {
      write(plan_.layout.WeightBytes(tile), &TilePolicy::WeightWritten);
    }
    if (home.record_on_drive) {
      write(plan_.layout.RecordBytes(tile), &TilePolicy::RecordWritten);
    }
    CarryOut();
  }

  // What the policy decides.

  void Happened(TileId tile, void (TilePolicy::*what)(TileId)) {
    (policy_.*what)(tile);
    CarryOut();
  }

  void CarryOut() {
    for (const TileAction& action : policy_.TakeActions()) Read(action);
    GiveOutWork();
    const offload::TileWakes wakes = policy_.TakeWakes();
    if (wakes.device) clock_.After(0, [this]() { PinTiles(); });
    if (wakes.settled && first_pass_) clock_.After(0, [this]() { EndFirstPass(); });
  }

  void Read(const TileAction& action) {
    if (action.kind == TileAction::Kind::kEvictWeight ||
        action.kind == TileAction::Kind::kEvictRecord) {
      return;
    }
    const bool record = action.kind == TileAction::Kind::kReadRecord;
    const bool for_device = action.kind == TileAction::Kind::kReadWeight;
    const auto done = record ? &TilePolicy::RecordRead : &TilePolicy::WeightRead;
    Submit(aio::Operation::kRead,
           record ? plan_.layout.RecordBytes(action.tile) : plan_.layout.WeightBytes(action.tile),
           for_device ? aio::Priority::kParameterRead : aio::Priority::kStateRead, action.tile,
           done);
  }

  /// Its share of the processor is taken beside what the drive does.
  void Submit(aio::Operation operation, Bytes size, aio::Priority priority, TileId tile,
              void (TilePolicy::*done)(TileId)) {
    cores_.Work(static_cast<double>(size.value) * machine_.io_byte, 1, [] {});
    drives_[drive_of_[Index(tile)]].Submit(operation, size, priority,
                                           [this, tile, done]() { Happened(tile, done); });
  }

  /// Bytes read and written so far.
  std::pair<uint64_t, uint64_t> Moved() const {
    std::pair<uint64_t, uint64_t> bytes;
    for (const Drive& drive : drives_) {
      bytes.first += drive.read_bytes();
      bytes.second += drive.write_bytes();
    }
    return bytes;
  }

  const StepPlan& plan_;
  const Machine& machine_;
  const offload::TilePolicyOptions policy_options_ =
      offload::PolicyOptions(plan_.layout, plan_.store);
  Clock clock_;
  Cores cores_;
  std::deque<Drive> drives_;
  const std::vector<uint16_t> drive_of_ = offload::SpreadTiles(
      plan_.layout, std::vector<double>(machine_.drives, 1));  ///< drive of each tile
  TilePolicy policy_;
  Stream compute_;
  Stream copy_in_;
  Stream copy_out_;
  Stream comm_;
  const uint32_t ranks_;
  std::vector<Slot> slots_;
  std::vector<Event> wholes_;  ///< last exchange of each buffer that modules share
  zero::StagingRing<Event> staging_;
  uint64_t exchanges_;                  ///< exchanges of a module's gradient in a step
  std::map<size_t, Event> own_wholes_;  ///< the same for modules with their own buffer
  uint64_t turn_ = 0;                   ///< counts the whole gradients of a step
  uint64_t fetched_use_ = 0;            ///< the use whose weights are fetched
  std::function<void()> after_fetch_;
  std::vector<std::vector<ModuleId>> reduced_at_;  ///< modules reduced at each use
  std::array<Event, 2> last_copies_;
  size_t next_copy_ = 0;
  uint64_t last_step_ = 0;
  uint64_t use_ = 0;
  uint64_t time_ = 0;  ///< schedule time
  uint32_t next_tile_ = 0;
  std::deque<TileId> arrived_;  ///< gradients whose blocks are not summed
  size_t sums_missing_ = 0;
  bool deciding_ = false;  ///< everything except the norm is known
  bool first_pass_ = false;
  int free_threads_;
  Seconds step_begin_ = 0;
  std::pair<uint64_t, uint64_t> bytes_begin_;
  std::vector<StepTime> times_;
};

}  // namespace

std::vector<StepTime> SimulateSteps(const StepPlan& plan, const Machine& machine, uint64_t steps) {
  return Engine(plan, machine).Run(steps);
}

}  // namespace penstock::sim
