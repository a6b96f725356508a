// The model computes on a device with its own memory of a fixed size, and streams that execute
// copies and kernels in order and asynchronously to the host.
//
// The contract is CUDA's: work on one stream runs in order, work on different streams runs in any
// order unless a stream waits for an event of another. The CPU device keeps exactly that contract
// with one thread a stream, so that a missing event is a visible mistake.
//
// Threads: a Stream may be fed by one thread at a time; Device and Event may be used from any
// thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/activity.h"
#include "base/mapping.h"
#include "base/result.h"
#include "base/units.h"

struct CUstream_st;  // the target of CUDA's cudaStream_t

namespace penstock::device {

enum class Kind { kCpu, kCuda };
const char* ToString(Kind kind);

/// A point in a stream's work; copies refer to the same point. A default-constructed one is
/// reached.
class Event {
 public:
  /// Implemented by each device.
  class State {
   public:
    virtual ~State() = default;
    virtual bool Reached() const = 0;
    virtual void Wait() const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool reached() const { return state_ == nullptr || state_->Reached(); }
  /// Blocks the calling thread.
  void Wait() const {
    if (state_ != nullptr) state_->Wait();
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// What a wait of a stream is for; decides whether the meter counts it as waiting for data.
enum class WaitReason { kOrder, kData };

class Stream {
 public:
  /// Completes all work and all calls first.
  virtual ~Stream() = default;

  /// Asynchronous copies. The host side must stay valid and unchanged until an event recorded after
  /// the copy is reached. From and to memory that is not registered with the device, CUDA may make
  /// the caller wait for the copy.
  virtual void CopyToDevice(std::byte* device, const std::byte* host, Bytes size) = 0;
  virtual void CopyToHost(std::byte* host, const std::byte* device, Bytes size) = 0;
  virtual void Zero(std::byte* device, Bytes size) = 0;

  /// Returns the event of all work so far. If the device cannot give one, enqueued work is
  /// completed at once, and streams that wait for the event fail as this one does.
  virtual Event Record() = 0;
  /// Later work on this stream runs only after `event`; the calling thread does not wait.
  virtual void Wait(const Event& event, WaitReason reason) = 0;
  void Wait(const Event& event) { Wait(event, WaitReason::kOrder); }
  /// Runs `function` on a thread of the device when all earlier work is done, and the calls before
  /// it. It must be short, must not throw and must not call the device. Work that is enqueued later
  /// may not rely on it, but Synchronize waits for it.
  virtual void Call(std::function<void()> function) = 0;
  /// Work that is enqueued from now on is called `what` in traces.
  virtual void Name(std::string what) = 0;

  /// Blocks until all work is done and all calls have run. After a failure of the device or of a
  /// kernel, always returns that failure; the work after it was skipped.
  virtual Status Synchronize() = 0;
};

/// A stream of the CPU device: kernels and transfers are functions that run on the stream's thread.
/// An exception in one is the stream's failure (Synchronize returns it).
class CpuStream : public Stream {
 public:
  /// Counts as compute in the meter of the device.
  virtual void Launch(std::function<void()> kernel) = 0;
  /// Like Launch, for what moves data and may wait for it: does not count as compute. An error that
  /// `transfer` returns is the stream's failure, as it is.
  virtual void Transfer(std::function<Status()> transfer) = 0;
};

/// A stream of the CUDA device.
class CudaStream : public Stream {
 public:
  /// Calls `enqueue` at once with the cudaStream_t, for kernels and libraries; an error that it
  /// returns is the stream's failure, after which it is not called any more. What it enqueues
  /// counts as compute in the meter of the device.
  virtual void Launch(const std::function<Status(CUstream_st*)>& enqueue) = 0;
  /// Like Launch, for what moves data: does not count as compute. An error that `enqueue` returns
  /// is the stream's failure, as it is.
  virtual void Transfer(const std::function<Status(CUstream_st*)>& enqueue) = 0;

  // The next calls are for memory and streams of others, on the same device.
  /// Copies within the device. One of the two sides may be memory that is not of the arena.
  virtual void CopyOnDevice(std::byte* to, const std::byte* from, Bytes size) = 0;
  /// Has what is enqueued from now on come after all work that `other` has now.
  virtual void Follow(CUstream_st* other) = 0;
  /// Has what `other` is given from now on come after all work that this stream has now.
  virtual void Precede(CUstream_st* other) = 0;
  /// Returns the first failure of enqueuing so far; work may yet fail when it runs.
  virtual const Status& status() const = 0;
};

class Device;

/// Device memory that gives itself back. Must not outlive its Device, nor the work that uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  /// The buffer as elements; T is what the caller stored there.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  friend class Device;
  DeviceBuffer(Device* device, std::byte* data, Bytes size)
      : device_(device), data_(data), size_(size) {}

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes size_;
};

/// Host memory that the device copies from and to directly, as long as the registration lives. Must
/// not outlive its Device, nor the memory.
class HostRegistration {
 public:
  HostRegistration() = default;
  HostRegistration(HostRegistration&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        data_(std::exchange(other.data_, nullptr)) {}
  HostRegistration& operator=(HostRegistration other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~HostRegistration();

 private:
  friend class Device;
  HostRegistration(Device* device, std::byte* data) : device_(device), data_(data) {}

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Zeroed host memory, registered with a device. Must not outlive it, nor the copies that use it.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&&) noexcept = default;
  HostBuffer& operator=(HostBuffer other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(registration_, other.registration_);
    return *this;
  }

  std::byte* data() const { return memory_.data(); }
  /// The buffer as elements; T is what the caller stored there.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.data());
  }

 private:
  friend class Device;
  HostBuffer(Mapping memory, HostRegistration registration)
      : memory_(std::move(memory)), registration_(std::move(registration)) {}

  Mapping memory_;
  HostRegistration registration_;  ///< is destroyed first
};

/// Allocations are rounded up to this; a plan that sums rounded sizes is exact.
inline constexpr Bytes kDeviceAlignment = 256_B;

class Device {
 public:
  virtual ~Device() = default;

  virtual Kind kind() const = 0;
  /// Returns readable text: "cpu (AMD EPYC, 2 cores)".
  virtual const std::string& name() const = 0;
  /// The bus id, as CUDA prints it ("0000:3B:00.0"); empty if the device's memory is the host's.
  virtual std::string pci_bus_id() const = 0;

  /// Memory of the arena, aligned to kDeviceAlignment, contents undefined. The arena has `limit()`
  /// bytes and is cut first-fit: one byte more is kBudget, naming `what` and the sums.
  Result<DeviceBuffer> Allocate(Bytes size, const std::string& what);
  virtual Bytes limit() const = 0;
  virtual Bytes used() const = 0;
  /// The largest value that used() ever had.
  virtual Bytes peak() const = 0;

  /// Pins the pages of `memory`, so that copies from and to it run at the speed of the bus. The CPU
  /// device needs no pinning. Errors: kOutOfMemory if the machine or a limit of the process allows
  /// too little to be pinned.
  Result<HostRegistration> RegisterHost(std::span<std::byte> memory);
  Result<HostBuffer> AllocateHost(Bytes size);

  /// `name` is for traces and debuggers ("compute", "copy-in", "copy-out"). Errors: of the device.
  virtual Result<std::unique_ptr<Stream>> CreateStream(const std::string& name) = 0;

 protected:
  friend class DeviceBuffer;
  friend class HostRegistration;
  virtual Result<std::byte*> Take(Bytes size, const std::string& what) = 0;
  virtual void Give(std::byte* data, Bytes size) = 0;
  virtual Status Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::byte* data) = 0;
};

struct DeviceOptions {
  Bytes memory;                    ///< size of the arena
  ActivityMeter* meter = nullptr;  ///< receives compute and data-wait times; outlives the device
};

/// The CPU device. Its arena is one mapping; pages are backed when first touched. Errors:
/// kOutOfMemory.
Result<std::unique_ptr<Device>> CreateCpuDevice(const DeviceOptions& options);

/// The calling thread's current CUDA device: the first one, unless the thread has chosen another.
/// Its arena is allocated at once. Errors: kUnavailable if the build has no CUDA or the machine no
/// GPU; kOutOfMemory.
Result<std::unique_ptr<Device>> CreateCudaDevice(const DeviceOptions& options);

/// Returns the free memory of the calling thread's current CUDA device. Errors: kUnavailable, as
/// above.
Result<Bytes> FreeCudaMemory();

/// Returns the version of CUDA that this build was made with, as CUDA writes it (12040: 12.4); 0
/// for a build without.
int BuiltCudaVersion();

}  // namespace penstock::device
