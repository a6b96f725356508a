// Copies between the engine's host memory and memory of a CUDA device, on streams of the caller's.
//
// What is to follow a copy on the host runs on threads of the engine, in the order of the calls,
// when an event behind the copy is reached: one thread for weights, which only gives memory back,
// and a team for gradients, which are added up. So weights wait for no gradient. (A host function
// of the driver's would hold the stream up, would run in no order with those of other streams, and
// would never run after a failure of the device, for which the engine would then wait for ever.)
//
// Threads: one at a time, but for the threads of its own.
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
  /// Registers `memory`, all that copies touch on the host, in the context of `stream`, of which
  /// every later stream has to be. The memory outlives the object. `gradient_threads`: how many add
  /// gradients up. Errors: kUnavailable without a driver, and if neither the stream nor the calling
  /// thread has a context; kOutOfMemory.
  static Result<std::unique_ptr<DeviceCopies>> Create(
      CuStream stream, const std::vector<std::span<std::byte>>& memory, int gradient_threads);
  /// Waits for all copies and what follows them.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Makes the context of the copies current for as long as the scope lives, in which the next
  /// three functions are called. The object outlives it. Errors: kInvalidArgument for a stream of
  /// another context.
  Result<ContextScope> Enter(CuStream stream) const;

  // Enqueue a copy. The host's side stays as it is until what follows it runs.
  Status ToDevice(CuStream stream, CuDevicePointer to, std::span<const std::byte> from);
  Status ToHost(CuStream stream, std::span<std::byte> to, CuDevicePointer from);
  using Done = std::function<void(const Status& copied)>;
  /// Has `done` called when all that was enqueued on the stream before has ended; with the failure
  /// if a copy has failed. It is called in any case, and may not enqueue anything.
  Status AfterWeights(CuStream stream, Done done);
  /// The same for a gradient, of which several threads do a share of `work` before, unless a copy
  /// has failed. Gradients are worked on and done in the order of the calls.
  Status AfterGradient(CuStream stream, CallTeam::Work work, Done done);
  /// The same for a gradient that needs no copy.
  void AddGradient(CallTeam::Work work, Done done);
  /// Waits until all that was to follow copies has run: of gradients, or of all. Errors: the first
  /// failure of a copy, for good.
  Status WaitForGradients();
  Status Wait();
  /// Returns the first failure so far.
  Status status() const EXCLUDES(mutex_);
  /// How much of the host's memory is registered.
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
  std::vector<CuEvent> events_ GUARDED_BY(mutex_);  ///< that are not in use
  // Last: they use all the others.
  device::CallThread after_weights_;
  CallTeam after_gradients_;
};

}  // namespace penstock::front
