#include "device/device.h"

#include <utility>

namespace penstock::device {

const char* ToString(Kind kind) {
  switch (kind) {
    case Kind::kCpu:
      return "cpu";
    case Kind::kCuda:
      return "cuda";
  }
  return "?";
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes{})) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  // What this buffer held goes back now, not when `other` dies: the arena is a hard limit.
  DeviceBuffer taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->Give(data_, size_);
}

HostRegistration::~HostRegistration() {
  if (device_ != nullptr) device_->Unpin(data_);
}

Result<HostRegistration> Device::RegisterHost(std::span<std::byte> memory) {
  if (memory.empty()) return HostRegistration();
  PENSTOCK_TRY(Pin(memory));
  return HostRegistration(this, memory.data());
}

Result<HostBuffer> Device::AllocateHost(Bytes size) {
  PENSTOCK_ASSIGN(Mapping memory, Mapping::Create(size));
  PENSTOCK_ASSIGN(HostRegistration registration,
                  RegisterHost({memory.data(), memory.size().value}));
  return HostBuffer(std::move(memory), std::move(registration));
}

Result<DeviceBuffer> Device::Allocate(Bytes size, const std::string& what) {
  if (size == 0_B) return DeviceBuffer();
  PENSTOCK_ASSIGN(std::byte* const data, Take(size, what));
  return DeviceBuffer(this, data, size);
}

}  // namespace penstock::device
