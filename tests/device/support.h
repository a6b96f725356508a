// What the tests of the CPU device share: a device with a meter, and an event that a test fires.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <utility>

#include "base/activity.h"
#include "device/device.h"

namespace penstock::device {

/// Reached when the test says so; tells the test when somebody has begun to wait.
class ManualEvent final : public Event::State {
 public:
  void Fire() { fired_.count_down(); }
  /// Blocks until Wait has been called (once).
  void AwaitWaiter() const { awaited_.wait(); }

  bool Reached() const override { return fired_.try_wait(); }
  void Wait() const override {
    awaited_.count_down();
    fired_.wait();
  }

 private:
  std::latch fired_{1};
  mutable std::latch awaited_{1};
};

/// Returns when the clock that the meter reads has moved on, so that a busy lane has a time above
/// 0.
inline void LetTheClockTick() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() == start) {
  }
}

class CpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateCpuDevice(DeviceOptions{.memory = 1_MiB, .meter = &meter_});
    ASSERT_TRUE(device.ok());
    device_ = std::move(device).value();
  }

  std::unique_ptr<CpuStream> NewStream(const std::string& name) {
    std::unique_ptr<Stream> stream = device_->CreateStream(name).value();
    auto* const cpu = dynamic_cast<CpuStream*>(stream.get());
    EXPECT_NE(cpu, nullptr) << "streams of the CPU device take kernels";
    (void)stream.release();
    return std::unique_ptr<CpuStream>(cpu);
  }

  ActivityMeter meter_;
  std::unique_ptr<Device> device_;
};

}  // namespace penstock::device
