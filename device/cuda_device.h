// A GPU as a device: one allocation of the budget, divided by the arena.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "device/arena.h"
#include "device/cuda_events.h"
#include "device/device.h"

namespace penstock::device {

/// One cudaMalloc.
class CudaMemory {
 public:
  /// Errors: kOutOfMemory, with what is free.
  static Result<CudaMemory> Allocate(Bytes size);
  CudaMemory(CudaMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  CudaMemory& operator=(CudaMemory&&) = delete;
  ~CudaMemory();

  std::byte* data() const { return data_; }

 private:
  explicit CudaMemory(std::byte* data) : data_(data) {}
  std::byte* data_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::string name, std::string pci_bus_id, CudaMemory memory,
             const DeviceOptions& options);

  Kind kind() const override { return Kind::kCuda; }
  const std::string& name() const override { return name_; }
  std::string pci_bus_id() const override { return pci_bus_id_; }
  Bytes limit() const override { return arena_.limit(); }
  Bytes used() const override { return arena_.used(); }
  Bytes peak() const override { return arena_.peak(); }
  Result<std::unique_ptr<Stream>> CreateStream(const std::string& name) override;

 protected:
  Result<std::byte*> Take(Bytes size, const std::string& what) override {
    return arena_.Take(size, what);
  }
  void Give(std::byte* data, Bytes size) override { arena_.Give(data, size); }
  Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::byte* data) override;

 private:
  const std::string name_;
  const std::string pci_bus_id_;
  ActivityMeter* const meter_;
  CudaMemory memory_;
  Arena arena_;
  const std::shared_ptr<CudaEventPool> events_;
};

}  // namespace penstock::device
