// Executes the schedule on the device: copies each module's weights into its slot in time.
//
// The host runs ahead of the device: Acquire waits until a module's weights are in host memory and
// the copy is enqueued, never until it is done; the compute stream waits for the copy through an
// event, and a copy waits for the last kernel that used its slot through another. But no more than
// two modules wait to be copied, because host memory holds their weights until then, and updates
// can use that memory.
//
// With several ranks, gathers of weights and exchanges of gradients run on one stream, in the order
// of the calls. There FetchAhead, before an exchange, keeps the next module's gather from waiting
// behind it for the kernels of this one.
//
// Callers need not follow the schedule. A use that the schedule does not name next is *late*: it is
// served from a slot that has its weights, or with a copy of its own, and the clock stays at the
// use that the schedule names. So a step that leaves out, adds or swaps uses costs copies, but
// changes no bits.
//
// Threads: one. Owns the device slots and the copy-in stream.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "device/device.h"
#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/tile_store.h"

namespace penstock::offload {

/// Completes a module's weights on the device with the shares of other ranks.
class ShareGatherer {
 public:
  virtual ~ShareGatherer() = default;
  /// This rank's share of the module is at its place in `slot` once `copied` is reached, and the
  /// slot is not in use. Returns the event with which the whole module is there.
  virtual device::Event Gather(ModuleId module, std::byte* slot, const device::Event& copied) = 0;
};

struct ExecutorOptions {
  ShareGatherer* gatherer = nullptr;  ///< null: the share is the whole module
  ActivityMeter* meter = nullptr;
};

class Executor {
 public:
  /// Allocates the slots. All arguments outlive the executor. Errors: kBudget.
  static Result<std::unique_ptr<Executor>> Create(const ShardLayout& layout,
                                                  const Schedule& schedule, device::Device& device,
                                                  device::Stream& compute, TileStore& store,
                                                  const ExecutorOptions& options);

  /// Returns the weights of a module on the device, for work enqueued on the compute stream after
  /// the call, until its Release. A module that is already held has the same address. Errors: of
  /// the store; kInvalidArgument if all slots that it could take are held.
  Result<const std::byte*> Acquire(ModuleId module);
  /// Fetches the weights of the use that the schedule names next, if it says that they may be
  /// fetched ahead and their slot is free. The calls so far decide, so ranks that make the same
  /// calls do the same. Errors: of the store.
  Status FetchAhead();
  /// Ends a use: work enqueued so far is its last.
  void Release(ModuleId module);
  /// Ends a step, regardless of its uses: the clock is set to the start of the next one. Modules
  /// that are still held keep their slots; their weights are copied anew when they are acquired
  /// again.
  void EndStep();
  /// Between steps: gives the next steps another schedule (which outlives the executor) of the same
  /// modules and slots. The one before need not exist any more. Precondition: the store gets the
  /// same schedule.
  void SetSchedule(const Schedule& schedule);
  /// Waits until everything is copied and unpinned. Errors: of the copies; results computed since
  /// the first failed copy are worthless.
  Status Synchronize() { return copy_in_->Synchronize(); }

  uint64_t evictions() const { return evictions_; }
  /// Counts the uses that the schedule did not name next, or whose weights it expected in a slot
  /// that another such use had taken.
  uint64_t late_uses() const { return late_uses_; }

 private:
  struct Slot {
    device::DeviceBuffer buffer;
    device::Event ready;             ///< recorded after the last copy into it
    device::Event last_use;          ///< recorded after the last kernel that read it
    int held = 0;                    ///< acquires without their release
    bool shared = true;              ///< used by modules without their own slot
    std::optional<ModuleId> module;  ///< module whose weights were last copied into it
    bool current = false;            ///< whether it is of this step, in which weights do not change
    uint64_t acquired_at = 0;        ///< the number of the last use
  };

  Executor(const ShardLayout& layout, device::Stream& compute, TileStore& store,
           const ExecutorOptions& options)
      : layout_(layout),
        compute_(compute),
        store_(store),
        gatherer_(options.gatherer),
        meter_(options.meter),
        trace_(TraceOf(options.meter)) {}
  void Plan(const Schedule& schedule);
  const ScheduledUse* PlannedUse(ModuleId module) const;
  uint64_t NextUse(ModuleId module) const;
  Slot* SlotOf(ModuleId module);
  Result<Slot*> ChooseSlot(ModuleId module, const ScheduledUse* planned);
  Status Fetch(ModuleId module, Slot& slot);
  Result<size_t> CopyTiles(ModuleId module, IdRange<TileId> tiles, Slot& slot);
  /// Returns the name in traces of work for this use.
  std::string NameOfUse(ModuleId module, const ScheduledUse* planned) const;

  const ShardLayout& layout_;
  const Schedule* schedule_ = nullptr;
  device::Stream& compute_;
  TileStore& store_;
  ShareGatherer* const gatherer_;
  ActivityMeter* const meter_;
  Trace* const trace_;
  Trace::Row waits_;
  std::vector<Slot> slots_;
  std::vector<std::optional<uint32_t>> slot_of_;   ///< last slot of each module
  std::vector<std::vector<uint64_t>> planned_at_;  ///< the uses of each module in a step, in order
  uint64_t step_start_ = 0;                        ///< start of the step, in schedule time
  uint64_t use_ = 0;                               ///< next use of the plan; its length: none
  uint64_t acquired_ = 0;
  uint64_t late_uses_ = 0;
  uint64_t evictions_ = 0;
  std::array<device::Event, 2> last_copies_;  ///< copies of the last two modules
  size_t next_copy_ = 0;
  std::unique_ptr<device::Stream> copy_in_;  ///< last: stops before members that it uses
};

}  // namespace penstock::offload
