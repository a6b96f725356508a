#include "front/device_copies.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"

namespace penstock::front {

/// The work of a stream up to a point.
class DeviceCopies::StreamPoint final : public device::Event::State {
 public:
  StreamPoint(DeviceCopies& copies, CuEvent event) : copies_(copies), event_(event) {}
  bool Reached() const override { return reached_; }
  /// Is called once: the event is another one's afterwards.
  void Wait() const override {
    copies_.WaitFor(event_);
    reached_ = true;
  }

 private:
  DeviceCopies& copies_;
  CuEvent event_;
  mutable std::atomic<bool> reached_ = false;
};

Result<std::unique_ptr<DeviceCopies>> DeviceCopies::Create(
    CuStream stream, const std::vector<std::span<std::byte>>& memory, int gradient_threads) {
  PENSTOCK_ASSIGN(const CudaDriver driver, LoadCudaDriver());
  PENSTOCK_ASSIGN(CuContext context, ContextOf(driver, stream));
  if (context == nullptr) {
    return MakeError(
        ErrorCode::kUnavailable,
        "cuda: the default stream was given, and the calling thread has no current context; give a "
        "stream of the device, or call from a thread that uses it");
  }
  std::unique_ptr<DeviceCopies> copies(new DeviceCopies(driver, context, gradient_threads));
  PENSTOCK_ASSIGN(const ContextScope scope, ContextScope::Enter(copies->driver_, context));
  for (const std::span<std::byte> part : memory) PENSTOCK_TRY(copies->Register(part));
  return copies;
}

Status DeviceCopies::Register(std::span<std::byte> memory) {
  if (memory.empty()) return {};
  PENSTOCK_TRY(driver_.Check(
      driver_.mem_host_register(memory.data(), memory.size(), kCuHostRegisterPortable),
      fmt::format("registering {} of host memory", ToString(Bytes{memory.size()}))));
  registered_.push_back(memory.data());
  registered_bytes_ += Bytes{memory.size()};
  return {};
}

/// At the end of the process the driver may be gone already, and the registration with it.
DeviceCopies::~DeviceCopies() {
  static_cast<void>(Wait());
  const Result<ContextScope> scope = ContextScope::Enter(driver_, context_);
  {
    MutexLock lock(mutex_);
    for (CuEvent event : events_) static_cast<void>(driver_.event_destroy(event));
  }
  for (std::byte* const data : registered_) static_cast<void>(driver_.mem_host_unregister(data));
}

Result<ContextScope> DeviceCopies::Enter(CuStream stream) const {
  PENSTOCK_ASSIGN(CuContext context, ContextOf(driver_, stream));
  if (context != nullptr && context != context_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "cuda: the stream is of another context than that of the first copy; an "
                     "engine copies from and to one device, so give streams of that one, and with "
                     "the default stream make its context current first");
  }
  return ContextScope::Enter(driver_, context_);
}

Status DeviceCopies::Keep(Status status) {
  MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

Status DeviceCopies::status() const {
  MutexLock lock(mutex_);
  return failure_;
}

Status DeviceCopies::ToDevice(CuStream stream, CuDevicePointer to,
                              std::span<const std::byte> from) {
  return Keep(driver_.Check(driver_.memcpy_to_device(to, from.data(), from.size(), stream),
                            fmt::format("copying {} bytes to the device", from.size())));
}

Status DeviceCopies::ToHost(CuStream stream, std::span<std::byte> to, CuDevicePointer from) {
  return Keep(driver_.Check(driver_.memcpy_to_host(to.data(), from, to.size(), stream),
                            fmt::format("copying {} bytes to the host", to.size())));
}

Result<CuEvent> DeviceCopies::Record(CuStream stream) {
  std::optional<CuEvent> event;
  {
    MutexLock lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (!event) {
    event.emplace();
    PENSTOCK_TRY(
        driver_.Check(driver_.event_create(&*event, kCuEventBlockingSync | kCuEventDisableTiming),
                      "making an event"));
  }
  const Status recorded = driver_.Check(driver_.event_record(*event, stream), "recording an event");
  if (recorded.ok()) return *event;
  MutexLock lock(mutex_);
  events_.push_back(*event);
  return recorded.error();
}

void DeviceCopies::WaitFor(CuEvent event) {
  static_cast<void>(driver_.ctx_set_current(context_));  // nothing, if it is the thread's already
  const Status waited =
      driver_.Check(driver_.event_synchronize(event), "waiting for copies of the device");
  if (!waited.ok()) {  // copies may be under way all the same, unless this fails as well
    static_cast<void>(driver_.ctx_synchronize());
    static_cast<void>(Keep(waited));
  }
  MutexLock lock(mutex_);
  events_.push_back(event);
}

/// Returns an event after all work of a stream so far. If there is none, the work has ended.
device::Event DeviceCopies::PointOf(CuStream stream) {
  Result<CuEvent> event = Record(stream);
  if (event.ok()) return device::Event(std::make_shared<StreamPoint>(*this, *event));
  static_cast<void>(driver_.ctx_synchronize());  // what was enqueued may be under way
  static_cast<void>(Keep(event.status()));
  return {};
}

Status DeviceCopies::AfterWeights(CuStream stream, Done done) {
  after_weights_.Add(PointOf(stream), [this, done = std::move(done)] { done(status()); });
  return status();
}

Status DeviceCopies::AfterGradient(CuStream stream, CallTeam::Work work, Done done) {
  Enqueue(PointOf(stream), std::move(work), std::move(done));
  return status();
}

void DeviceCopies::AddGradient(CallTeam::Work work, Done done) {
  Enqueue({}, std::move(work), std::move(done));
}

void DeviceCopies::Enqueue(device::Event before, CallTeam::Work work, Done done) {
  after_gradients_.Add(
      std::move(before),
      [this, work = std::move(work)](const CallTeam::Share& share) {
        if (status().ok()) work(share);
      },
      [this, done = std::move(done)] { done(status()); });
}

Status DeviceCopies::WaitForGradients() {
  after_gradients_.Drain();
  return status();
}

Status DeviceCopies::Wait() {
  after_weights_.Drain();
  return WaitForGradients();
}

}  // namespace penstock::front
