// Copies between the engine's host memory and memory of a CUDA device, on streams of the caller's.
//
// What is to follow a copy on the host runs on one thread, in the order of the calls, when an event
// behind the copy is reached. (A host function of the driver's would hold the stream up, would run
// in no order with those of other streams, and would never run after a failure of the device, for
// which the engine would then wait for ever.)
//
// Threads: one at a time, but for the thread of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "device/call_thread.h"
#include "front/cuda_driver.h"

namespace penstock::front {

class DeviceCopies {
 public:
  /// Registers `memory`, all that copies touch on the host, in the caller's current context. It
  /// outlives the object. Errors: kUnavailable without a driver or a context; kOutOfMemory.
  static Result<std::unique_ptr<DeviceCopies>> Create(
      const std::vector<std::span<std::byte>>& memory);
  /// Waits for all copies and what follows them.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Errors: kInvalidArgument if the caller's current context is another one.
  Status CheckContext() const;

  // Enqueue a copy. The host's side stays as it is until what follows it runs.
  Status ToDevice(CuStream stream, CuDevicePointer to, std::span<const std::byte> from);
  Status ToHost(CuStream stream, std::span<std::byte> to, CuDevicePointer from);
  /// Has `done` called when all that was enqueued on the stream before has ended; with the failure
  /// if a copy has failed. It is called in any case, and may not enqueue anything.
  Status Then(CuStream stream, std::function<void(const Status& copied)> done);
  /// Waits until all that was to follow copies has run. Errors: the first failure of a copy, for
  /// good.
  Status Wait();
  /// Returns the first failure so far.
  Status status() const EXCLUDES(mutex_);

 private:
  class StreamPoint;

  DeviceCopies(const CudaDriver& driver, CuContext context)
      : driver_(driver), context_(context), calls_("copies") {}
  Status Register(std::span<std::byte> memory);
  Status Keep(Status status) EXCLUDES(mutex_);
  Result<CuEvent> Record(CuStream stream) EXCLUDES(mutex_);
  void WaitFor(CuEvent event) EXCLUDES(mutex_);

  const CudaDriver driver_;
  const CuContext context_;
  std::vector<std::byte*> registered_;
  mutable Mutex mutex_;
  Status failure_ GUARDED_BY(mutex_);
  std::vector<CuEvent> events_ GUARDED_BY(mutex_);  ///< that are not in use
  device::CallThread calls_;                        ///< last: it uses all the others
};

}  // namespace penstock::front
