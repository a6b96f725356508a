// Keeps the activation checkpoints of a step: on the device, or in host memory with a few on the
// device.
//
// The step's accesses are known, so the plan (offload/checkpoint_plan.h) says when each checkpoint
// is copied out in forward and back ahead of backward. The host only enqueues: the compute stream
// waits for a copy, and copies wait for kernels, through events.
//
// Owns device slots, host memory and two streams for the copies. Threads: one, which feeds the
// compute stream.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "offload/checkpoint_plan.h"

namespace penstock::offload {

class CheckpointStore {
 public:
  struct Options {
    std::vector<CheckpointAccess> accesses;  ///< accesses of every step, until PlanSteps
    uint64_t checkpoints = 0;
    uint64_t slots = 0;  ///< slots on the device; one for each checkpoint: nothing is copied
    Bytes size;          ///< size of a checkpoint
  };
  /// Makes a store without checkpoints.
  CheckpointStore() = default;
  /// What Create takes from the device and from the host.
  static Bytes DeviceBytes(const Options& options);
  static Bytes HostBytes(const Options& options);
  /// Returns the max heap memory of Create's bookkeeping for a step of this many accesses by this
  /// many kernels, which need not be in `options` yet.
  static Bytes BookkeepingBytes(const Options& options, uint64_t accesses, uint64_t kernels);

  /// Errors: kBudget, kOutOfMemory.
  static Result<CheckpointStore> Create(const Options& options, device::Device& device);

  /// Between steps: makes a plan for steps with these accesses, to no more checkpoints and with no
  /// more kernels than in Options.
  void PlanSteps(const std::vector<CheckpointAccess>& accesses);
  /// Begins a step: the accesses start over.
  void BeginStep();
  /// Makes the next access of the step, which must be of `checkpoint`. Returns where it lies, for
  /// kernels that are enqueued on `compute` before EndKernel.
  std::byte* Access(uint32_t checkpoint, bool write, device::Stream& compute);
  /// Says that the kernels of the last accesses are enqueued.
  void EndKernel(device::Stream& compute);
  /// Waits for all copies and returns the first failure.
  Status Synchronize();

 private:
  struct Slot {
    device::DeviceBuffer buffer;
    device::Event fetched;  ///< recorded when the copy into it has ended
    device::Event copied;   ///< recorded when its content is on the host
  };

  void CopyOut(const CheckpointPlan::Use& use, device::Stream& compute);

  CheckpointPlan plan_;
  Bytes size_;
  device::HostBuffer host_;
  std::vector<std::byte*> on_host_;  ///< indexed by checkpoint
  std::vector<device::Event> out_;   ///< indexed by checkpoint: recorded when it is on the host
  std::vector<Slot> slots_;
  size_t next_use_ = 0;
  size_t kernel_begin_ = 0;                   ///< the first use of this kernel
  std::unique_ptr<device::Stream> copy_out_;  ///< streams end before members that they use
  std::unique_ptr<device::Stream> copy_in_;
};

}  // namespace penstock::offload
