// Copies between the engine's host memory and memory of a CUDA device, on streams of the caller's.
//
// Host work after a copy runs on threads of the engine, in the order of the calls, when an event
// after the copy is reached: one thread for weights, which only gives memory back, and a team for
// gradients, which are added up. So weights wait for no gradient. (A host function of the driver
// would block the stream, would run in no order with those of other streams, and would never run
// after a failure of the device, so that the engine would wait forever.)
//
// Threads: one at a time, besides its own threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "device/call_thread.h"
#include "front/call_team.h"
#include "front/cuda_context.h"
#include "front/cuda_driver.h"

namespace penstock::front {

class DeviceCopies {
 public:
  /// Registers `memory`, all host memory of the copies, in the context of `stream`, to which every
  /// later stream must belong. The memory outlives the object. `gradient_threads`: threads that add
  /// up gradients. Errors: kUnavailable without a driver, and if neither the stream nor the calling
  /// thread has a context; kOutOfMemory.
  static Result<std::unique_ptr<DeviceCopies>> Create(
      CuStream stream, const std::vector<std::span<std::byte>>& memory, int gradient_threads);
  /// Waits for all copies and the host work after them.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Makes the context of the copies current for as long as the scope lives, in which the next
  /// three functions are called. The object outlives it. Errors: kInvalidArgument for a stream of
  /// another context.
  Result<ContextScope> Enter(CuStream stream) const;

  // Enqueue a copy. Its host memory must not change until the host work after it runs.
  Status ToDevice(CuStream stream, CuDevicePointer to, std::span<const std::byte> from);
  Status ToHost(CuStream stream, std::span<std::byte> to, CuDevicePointer from);
  using Done = std::function<void(const Status& copied)>;
  /// Calls `done` when all earlier work of the stream has ended, with the failure if a copy has
  /// failed. `done` is always called, and may not enqueue anything.
  Status AfterWeights(CuStream stream, Done done);
  /// The same for a gradient. Before `done`, several threads each do a share of `work`, unless a
  /// copy has failed. Gradients are processed and completed in the order of the calls.
  Status AfterGradient(CuStream stream, CallTeam::Work work, Done done);
  /// The same for a gradient that needs no copy.
  void AddGradient(CallTeam::Work work, Done done);
  /// Waits until all host work after copies has run: for gradients, or for all. Errors: the first
  /// failure of a copy, from then on.
  Status WaitForGradients();
  Status Wait();
  /// Returns the first failure so far.
  Status status() const EXCLUDES(mutex_);
  /// Returns how much host memory is registered.
  Bytes registered_bytes() const { return registered_bytes_; }

 private:
  class StreamPoint;

  DeviceCopies(const CudaDriver& driver, CuContext context, int gradient_threads)
      : driver_(driver),
        context_(context),
        after_weights_("weights"),
        after_gradients_("gradients", gradient_threads) {}
  Status Register(std::span<std::byte> memory);
  Status Keep(Status status) EXCLUDES(mutex_);
  Result<CuEvent> Record(CuStream stream) EXCLUDES(mutex_);
  void WaitFor(CuEvent event) EXCLUDES(mutex_);
  device::Event PointOf(CuStream stream);
  void Enqueue(device::Event before, CallTeam::Work work, Done done);

  const CudaDriver driver_;
  const CuContext context_;
  std::vector<std::byte*> registered_;
  Bytes registered_bytes_;
  mutable Mutex mutex_;
  Status failure_ GUARDED_BY(mutex_);
  std::vector<CuEvent> events_ GUARDED_BY(mutex_);  ///< events that are not in use
  // Last: they use all the others.
  device::CallThread after_weights_;
  CallTeam after_gradients_;
};

}  // namespace penstock::front
