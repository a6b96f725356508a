// The ranks of a test: threads of this process, each with a device, a communicator of its own and,
// where the back end has jobs, a job.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/job.h"
#include "device/device.h"

namespace penstock::comm {

/// What a rank's thread has.
struct Rank {
  uint32_t number;
  uint32_t size;
  device::Device& device;
  Communicator& communicator;

  device::Stream& stream() const { return communicator.stream(); }
  device::DeviceBuffer Allocate(size_t size) const {
    return std::move(device.Allocate(Bytes{size}, "a buffer")).value();
  }
  /// `from` stays as it is until the stream is synchronized.
  void Write(const device::DeviceBuffer& to, const std::vector<std::byte>& from) const {
    stream().CopyToDevice(to.data(), from.data(), Bytes{from.size()});
  }
  /// Complete when the stream is synchronized.
  void Read(std::vector<std::byte>& to, const device::DeviceBuffer& from) const {
    stream().CopyToHost(to.data(), from.data(), Bytes{to.size()});
  }
};

/// Calls `function` for each rank below `size` on a thread of its own, and returns when all have
/// returned.
inline void OnThreads(uint32_t size, const std::function<void(uint32_t)>& function) {
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (uint32_t rank = 0; rank < size; ++rank) threads.emplace_back(function, rank);
  for (std::thread& thread : threads) thread.join();
}

struct Ranks {
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<std::unique_ptr<Communicator>> communicators;  ///< go first

  Ranks() = default;
  Ranks(Ranks&&) = default;
  Ranks& operator=(Ranks other) {
    jobs.swap(other.jobs);
    devices.swap(other.devices);
    communicators.swap(other.communicators);
    return *this;
  }

  uint32_t size() const { return static_cast<uint32_t>(devices.size()); }
  Rank operator[](uint32_t rank) const {
    return {rank, size(), *devices[rank], *communicators[rank]};
  }
  void Run(const std::function<void(const Rank&)>& function) const {
    OnThreads(size(), [&](uint32_t rank) { function((*this)[rank]); });
  }
};

/// The operation of a test, alike on all ranks.
inline Operation TheOperation(uint32_t index = 7) {
  return {.step = 3, .index = index, .what = "weights of h.3"};
}

/// Unique bytes: not those of another seed, nor these at another place.
inline std::vector<std::byte> Pattern(uint32_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t state = seed * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

}  // namespace penstock::comm
