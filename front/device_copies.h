// Copies between the engine's host memory and memory of a CUDA device, on streams of the caller's.
//
// What is to follow a copy on the host runs on a thread of the engine, in the order of the calls,
// when an event behind the copy is reached: one thread for weights, which only gives memory back,
// and one for gradients, which are added up. So weights wait for no gradient. (A host function of
// the driver's would hold the stream up, would run in no order with those of other streams, and
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
#include "front/cuda_context.h"
#include "front/cuda_driver.h"

namespace penstock::front {

/// What is copied: weights to the device, gradients from there.
enum class Copied { kWeights, kGradients };

class DeviceCopies {
 public:
  /// Registers `memory`, all that copies touch on the host, in the context of `stream`, of which
  /// every later stream has to be. The memory outlives the object. Errors: kUnavailable without a
  /// driver, and if neither the stream nor the calling thread has a context; kOutOfMemory.
  static Result<std::unique_ptr<DeviceCopies>> Create(
      CuStream stream, const std::vector<std::span<std::byte>>& memory);
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
  Status Then(Copied what, CuStream stream, Done done);
  /// Has `done` called behind all that follows copies of this kind so far.
  void ThenAtOnce(Copied what, Done done);
  /// Waits until all that was to follow copies has run: of one kind, or of both. Errors: the first
  /// failure of a copy, for good.
  Status Wait(Copied what);
  Status Wait();
  /// Returns the first failure so far.
  Status status() const EXCLUDES(mutex_);
  /// How much of the host's memory is registered.
  Bytes registered_bytes() const { return registered_bytes_; }

 private:
  class StreamPoint;

  DeviceCopies(const CudaDriver& driver, CuContext context)
      : driver_(driver),
        context_(context),
        after_weights_("weights"),
        after_gradients_("gradients") {}
  Status Register(std::span<std::byte> memory);
  Status Keep(Status status) EXCLUDES(mutex_);
  Result<CuEvent> Record(CuStream stream) EXCLUDES(mutex_);
  void WaitFor(CuEvent event) EXCLUDES(mutex_);
  device::CallThread& ThreadOf(Copied what) {
    return what == Copied::kWeights ? after_weights_ : after_gradients_;
  }

  const CudaDriver driver_;
  const CuContext context_;
  std::vector<std::byte*> registered_;
  Bytes registered_bytes_;
  mutable Mutex mutex_;
  Status failure_ GUARDED_BY(mutex_);
  std::vector<CuEvent> events_ GUARDED_BY(mutex_);  ///< that are not in use
  // Last: they use all the others.
  device::CallThread after_weights_;
  device::CallThread after_gradients_;
};

}  // namespace penstock::front
