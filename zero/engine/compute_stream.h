// The stream that a step's kernels run on: the engine's own, or one that the caller lends.
#pragma once

#include <memory>
#include <utility>

#include "base/result.h"
#include "device/device.h"

namespace penstock::zero {

class ComputeStream {
 public:
  /// `lent`: the caller's, which outlives this; none: a new one. Errors: of the device.
  static Result<ComputeStream> Create(device::Device& device, device::Stream* lent) {
    ComputeStream compute;
    compute.stream_ = lent;
    if (lent != nullptr) return compute;
    PENSTOCK_ASSIGN(compute.own_, device.CreateStream("compute"));
    compute.stream_ = compute.own_.get();
    return compute;
  }
  ComputeStream() = default;
  ComputeStream(ComputeStream&& other) noexcept
      : own_(std::move(other.own_)), stream_(std::exchange(other.stream_, nullptr)) {}
  ComputeStream& operator=(ComputeStream&& other) noexcept {
    std::swap(own_, other.own_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  /// Completes all work, as its own stream does: what the work uses ends next.
  ~ComputeStream() {
    if (own_ == nullptr && stream_ != nullptr) static_cast<void>(stream_->Synchronize());
  }

  device::Stream& operator*() const { return *stream_; }
  device::Stream* operator->() const { return stream_; }

 private:
  std::unique_ptr<device::Stream> own_;
  device::Stream* stream_ = nullptr;
};

}  // namespace penstock::zero
