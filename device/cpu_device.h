// The CPU as a device: an arena of host memory with a hard limit, and streams that are threads.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/mapping.h"
#include "device/arena.h"
#include "device/device.h"

namespace penstock::device {

class CpuDevice final : public Device {
 public:
  CpuDevice(Mapping memory, const DeviceOptions& options);

  Kind kind() const override { return Kind::kCpu; }
  const std::string& name() const override { return name_; }
  std::string pci_bus_id() const override { return {}; }
  Bytes limit() const override { return arena_.limit(); }
  Bytes used() const override { return arena_.used(); }
  Bytes peak() const override { return arena_.peak(); }
  Result<std::unique_ptr<Stream>> CreateStream(const std::string& name) override;

 protected:
  Result<std::byte*> Take(Bytes size, const std::string& what) override;
  void Give(std::byte* data, Bytes size) override;
  Status Pin(std::span<std::byte>) override { return {}; }
  void Unpin(std::byte*) override {}

 private:
  const std::string name_;
  ActivityMeter* const meter_;
  Mapping memory_;
  Arena arena_;
};

}  // namespace penstock::device
