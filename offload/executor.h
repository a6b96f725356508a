// Carries out the schedule on the device: copies each module's weights into its slot in time.
//
// The host runs ahead of the device: Acquire waits until a module's weights are in host memory and
// the copy is enqueued, never until it is done; the compute stream waits for the copy through an
// event, and a copy waits for the last kernel that used its slot through another. But no more than
// two modules wait to be copied, as host memory holds their weights so long: what they would hold
// beyond that, updates can use.
//
// Threads: one. Owns the device slots and the copy-in stream.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "device/device.h"
#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/tile_store.h"

namespace penstock::offload {

class Executor {
 public:
  /// Allocates the slots. All arguments outlive the executor. Errors: kBudget.
  static Result<std::unique_ptr<Executor>> Create(const ShardLayout& layout,
                                                  const Schedule& schedule, device::Device& device,
                                                  device::Stream& compute, TileStore& store,
                                                  ActivityMeter* meter);

  /// The next use of the schedule, which must be of `module` (kInvalidArgument otherwise). The
  /// weights on the device, for work enqueued on the compute stream after the call.
  Result<const std::byte*> Acquire(ModuleId module);
  /// Work enqueued so far is the last of this use.
  void Release(ModuleId module);
  /// The step's uses are all acquired; the clock stands at the start of the next step.
  void EndStep();
  /// Waits until everything is copied and unpinned. Errors: of the copies; what was computed since
  /// the first that failed is worth nothing.
  Status Synchronize() { return copy_in_->Synchronize(); }

  uint64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    device::DeviceBuffer buffer;
    device::Event ready;     ///< the last copy into it
    device::Event last_use;  ///< the last kernel that read it
    int held = 0;            ///< acquires without their release
  };

  Executor(const ShardLayout& layout, const Schedule& schedule, device::Stream& compute,
           TileStore& store, ActivityMeter* meter)
      : layout_(layout),
        schedule_(schedule),
        compute_(compute),
        store_(store),
        meter_(meter),
        trace_(TraceOf(meter)) {}
  Status Fetch(ModuleId module, Slot& slot);
  /// In traces, work is called after the use it is for.
  void NameUse(const ScheduledUse& use);

  const ShardLayout& layout_;
  const Schedule& schedule_;
  device::Stream& compute_;
  TileStore& store_;
  ActivityMeter* meter_;
  Trace* trace_;
  Trace::Row waits_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> slot_of_;  ///< of each module, while it is acquired
  uint64_t clock_ = 0;             ///< uses acquired since the start
  uint64_t evictions_ = 0;
  std::array<device::Event, 2> last_copies_;  ///< of the last two modules
  size_t next_copy_ = 0;
  std::unique_ptr<device::Stream> copy_in_;  ///< last member: stops before what its work uses
};

}  // namespace penstock::offload
