// A CPU device whose streams a test replaces: by one that fails at a copy to the device, as a GPU's
// may, or by one that counts.
//
// Threads: one thread allocates and gives back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "device/device.h"

namespace penstock::zero {

/// After a number of copies to the device the stream has failed: it skips all copies, and says so.
class FailingStream final : public device::Stream {
 public:
  FailingStream(std::unique_ptr<device::Stream> stream, std::string name, uint64_t copies)
      : stream_(std::move(stream)), name_(std::move(name)), copies_left_(copies) {}

  void CopyToDevice(std::byte* device, const std::byte* host, Bytes size) override {
    failed_ = failed_ || copies_left_ == 0;
    if (failed_) return;
    --copies_left_;
    stream_->CopyToDevice(device, host, size);
  }
  void CopyToHost(std::byte* host, const std::byte* device, Bytes size) override {
    if (!failed_) stream_->CopyToHost(host, device, size);
  }
  void Zero(std::byte* device, Bytes size) override {
    if (!failed_) stream_->Zero(device, size);
  }
  device::Event Record() override { return stream_->Record(); }
  using Stream::Wait;
  void Wait(const device::Event& event, device::WaitReason reason) override {
    stream_->Wait(event, reason);
  }
  void Call(std::function<void()> function) override { stream_->Call(std::move(function)); }
  void Name(std::string what) override { stream_->Name(std::move(what)); }
  Status Synchronize() override {
    PENSTOCK_TRY(stream_->Synchronize());
    if (!failed_) return {};
    return MakeError(ErrorCode::kUnavailable, "stream {}: a copy failed", name_);
  }

 private:
  const std::unique_ptr<device::Stream> stream_;
  const std::string name_;
  uint64_t copies_left_;
  bool failed_ = false;
};

/// Adds up what is copied to the host.
class CountingStream final : public device::CpuStream {
 public:
  CountingStream(std::unique_ptr<device::Stream> stream, Bytes& to_host)
      : stream_(std::move(stream)), to_host_(to_host) {}

  void Launch(std::function<void()> kernel) override {
    static_cast<device::CpuStream&>(*stream_).Launch(std::move(kernel));
  }
  void Transfer(std::function<Status()> transfer) override {
    static_cast<device::CpuStream&>(*stream_).Transfer(std::move(transfer));
  }
  void CopyToDevice(std::byte* device, const std::byte* host, Bytes size) override {
    stream_->CopyToDevice(device, host, size);
  }
  void CopyToHost(std::byte* host, const std::byte* device, Bytes size) override {
    to_host_ += size;
    stream_->CopyToHost(host, device, size);
  }
  void Zero(std::byte* device, Bytes size) override { stream_->Zero(device, size); }
  device::Event Record() override { return stream_->Record(); }
  using Stream::Wait;
  void Wait(const device::Event& event, device::WaitReason reason) override {
    stream_->Wait(event, reason);
  }
  void Call(std::function<void()> function) override { stream_->Call(std::move(function)); }
  void Name(std::string what) override { stream_->Name(std::move(what)); }
  Status Synchronize() override { return stream_->Synchronize(); }

 private:
  const std::unique_ptr<device::Stream> stream_;
  Bytes& to_host_;
};

class DeviceOfStreams final : public device::Device {
 public:
  using Replace = std::function<std::unique_ptr<device::Stream>(
      std::unique_ptr<device::Stream> stream, const std::string& name)>;
  DeviceOfStreams(std::unique_ptr<device::Device> device, Replace replace)
      : device_(std::move(device)), replace_(std::move(replace)) {}

  device::Kind kind() const override { return device_->kind(); }
  const std::string& name() const override { return device_->name(); }
  std::string pci_bus_id() const override { return device_->pci_bus_id(); }
  Bytes limit() const override { return device_->limit(); }
  Bytes used() const override { return device_->used(); }
  Bytes peak() const override { return device_->peak(); }
  Result<std::unique_ptr<device::Stream>> CreateStream(const std::string& name) override {
    PENSTOCK_ASSIGN(std::unique_ptr<device::Stream> stream, device_->CreateStream(name));
    return replace_(std::move(stream), name);
  }

 protected:
  Result<std::byte*> Take(Bytes size, const std::string& what) override {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer, device_->Allocate(size, what));
    std::byte* const data = buffer.data();
    taken_.emplace(data, std::move(buffer));
    return data;
  }
  void Give(std::byte* data, Bytes) override { taken_.erase(data); }
  Status Pin(std::span<std::byte>) override { return {}; }
  void Unpin(std::byte*) override {}

 private:
  const std::unique_ptr<device::Device> device_;
  const Replace replace_;
  std::map<std::byte*, device::DeviceBuffer> taken_;
};

/// The stream called `failing` fails after so many copies to the device.
inline std::unique_ptr<device::Device> MakeFailingDevice(std::unique_ptr<device::Device> device,
                                                         const std::string& failing,
                                                         uint64_t copies) {
  return std::make_unique<DeviceOfStreams>(
      std::move(device),
      [failing, copies](std::unique_ptr<device::Stream> stream,
                        const std::string& name) -> std::unique_ptr<device::Stream> {
        if (name != failing) return stream;
        return std::make_unique<FailingStream>(std::move(stream), name, copies);
      });
}

}  // namespace penstock::zero
