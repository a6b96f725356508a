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
    const std::vector<std::span<std::byte>>& memory) {
  PENSTOCK_ASSIGN(const CudaDriver driver, LoadCudaDriver());
  CuContext context = nullptr;
  PENSTOCK_TRY(driver.Check(driver.ctx_get_current(&context), "looking for the current context"));
  if (context == nullptr) {
    return MakeError(
        ErrorCode::kUnavailable,
        "cuda: the calling thread has no current context; call from a thread that uses "
        "the device");
  }
  std::unique_ptr<DeviceCopies> copies(new DeviceCopies(driver, context));
  for (const std::span<std::byte> part : memory) PENSTOCK_TRY(copies->Register(part));
  return copies;
}

Status DeviceCopies::Register(std::span<std::byte> memory) {
  if (memory.empty()) return {};
  PENSTOCK_TRY(driver_.Check(
      driver_.mem_host_register(memory.data(), memory.size(), kCuHostRegisterPortable),
      fmt::format("registering {} of host memory", ToString(Bytes{memory.size()}))));
  registered_.push_back(memory.data());
  return {};
}

/// The driver may be gone already, when the process ends: then so is the registration.
DeviceCopies::~DeviceCopies() {
  calls_.Drain();
  CuContext before = nullptr;
  const bool had = driver_.ctx_get_current(&before) == kCuSuccess;
  static_cast<void>(driver_.ctx_set_current(context_));
  {
    MutexLock lock(mutex_);
    for (CuEvent event : events_) static_cast<void>(driver_.event_destroy(event));
  }
  for (std::byte* const data : registered_) static_cast<void>(driver_.mem_host_unregister(data));
  if (had) static_cast<void>(driver_.ctx_set_current(before));
}

Status DeviceCopies::CheckContext() const {
  CuContext context = nullptr;
  PENSTOCK_TRY(driver_.Check(driver_.ctx_get_current(&context), "looking for the current context"));
  if (context == context_) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "cuda: the calling thread's current context is {} than that of the first copy; "
                   "an engine copies from and to one device, so make its context current first",
                   context == nullptr ? "none rather" : "another one");
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

Status DeviceCopies::Then(CuStream stream, std::function<void(const Status&)> done) {
  const auto call = [this, done = std::move(done)] { done(status()); };
  Result<CuEvent> event = Record(stream);
  if (!event.ok()) {  // what was enqueued may be under way
    static_cast<void>(driver_.ctx_synchronize());
    static_cast<void>(Keep(event.status()));
    calls_.Add({}, call);
    return status();
  }
  calls_.Add(device::Event(std::make_shared<StreamPoint>(*this, *event)), call);
  return {};
}

Status DeviceCopies::Wait() {
  calls_.Drain();
  return status();
}

}  // namespace penstock::front
