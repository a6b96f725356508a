// A CPU device of which one stream fails at a copy to the device, as a GPU's may.
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

class FailingDevice final : public device::Device {
 public:
  /// The stream called `stream` fails after so many copies to the device.
  FailingDevice(std::unique_ptr<device::Device> device, std::string stream, uint64_t copies)
      : device_(std::move(device)), stream_(std::move(stream)), copies_(copies) {}

  device::Kind kind() const override { return device_->kind(); }
  const std::string& name() const override { return device_->name(); }
  std::string pci_bus_id() const override { return device_->pci_bus_id(); }
  Bytes limit() const override { return device_->limit(); }
  Bytes used() const override { return device_->used(); }
  Bytes peak() const override { return device_->peak(); }
  Result<std::unique_ptr<device::Stream>> CreateStream(const std::string& name) override {
    PENSTOCK_ASSIGN(std::unique_ptr<device::Stream> stream, device_->CreateStream(name));
    if (name != stream_) return std::unique_ptr<device::Stream>(std::move(stream));
    return std::unique_ptr<device::Stream>(
        std::make_unique<FailingStream>(std::move(stream), name, copies_));
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
  const std::string stream_;
  const uint64_t copies_;
  std::map<std::byte*, device::DeviceBuffer> taken_;
};

}  // namespace penstock::zero
