// The contract of device.h on the first GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/activity.h"
#include "device/cuda_status.h"
#include "device/device.h"
#include "tests/device/support.h"
#include "tests/gpu_needed.h"

namespace penstock::device {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kMemory = 64_MiB;
constexpr size_t kCount = size_t{4} << 20;

std::optional<std::string> MissingGpu() {
  const Result<Bytes> free = FreeCudaMemory();
  return free.ok() ? std::nullopt : std::optional(free.error().message);
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PENSTOCK_SKIP_WHERE_MISSING(MissingGpu());
    auto device = CreateCudaDevice({.memory = kMemory, .meter = &meter_});
    ASSERT_TRUE(device.ok()) << device.error().message;
    device_ = std::move(device).value();
  }

  std::unique_ptr<CudaStream> NewStream(const std::string& name) {
    std::unique_ptr<Stream> stream = device_->CreateStream(name).value();
    auto* const cuda = dynamic_cast<CudaStream*>(stream.get());
    EXPECT_NE(cuda, nullptr);
    static_cast<void>(stream.release());
    return std::unique_ptr<CudaStream>(cuda);
  }
  /// Work that keeps the GPU busy for a while: the same bytes are set again and again.
  static void Occupy(CudaStream& stream, const DeviceBuffer& buffer) {
    stream.Launch([&](cudaStream_t handle) -> Status {
      for (int i = 0; i < 200; ++i) {
        PENSTOCK_TRY(CudaStatus(cudaMemsetAsync(buffer.data(), i, buffer.size().value, handle),
                                "setting memory"));
      }
      return {};
    });
  }

  ActivityMeter meter_;
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, SaysWhatItIsAndWhereItHangs) {
  EXPECT_EQ(device_->kind(), Kind::kCuda);
  EXPECT_THAT(device_->name(), HasSubstr("multiprocessors"));
  EXPECT_THAT(device_->pci_bus_id(), HasSubstr(":"));
}

TEST_F(CudaDeviceTest, TheArenaIsAHardLimitAndKnowsItsPeak) {
  EXPECT_EQ(device_->limit(), kMemory);
  {
    const auto all = device_->Allocate(kMemory, "all").value();
    const auto more = device_->Allocate(1_B, "a byte more");
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.error().code, ErrorCode::kBudget);
  }
  EXPECT_EQ(device_->used(), 0_B);
  EXPECT_EQ(device_->peak(), kMemory);
}

TEST_F(CudaDeviceTest, MoreThanTheGpuHasIsOutOfMemory) {
  const auto device = CreateCudaDevice({.memory = Bytes{uint64_t{1} << 50}});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(device.error().message, HasSubstr("--device-memory"));
}

TEST_F(CudaDeviceTest, StreamsThatWaitForEventsSeeWhatWasWrittenBefore) {
  const auto host = device_->AllocateHost(Bytes{2 * kCount}).value();
  std::byte* const sent = host.data();
  std::byte* const received = host.data() + kCount;
  const auto buffer = device_->Allocate(Bytes{kCount}, "a buffer").value();
  const auto in = NewStream("copy-in");
  const auto compute = NewStream("compute");
  const auto out = NewStream("copy-out");
  for (int round = 1; round <= 20; ++round) {
    std::fill_n(sent, kCount, static_cast<std::byte>(round));
    in->CopyToDevice(buffer.data(), sent, Bytes{kCount});
    compute->Wait(in->Record(), WaitReason::kData);
    compute->Zero(buffer.data(), Bytes{kCount / 2});
    out->Wait(compute->Record());
    out->CopyToHost(received, buffer.data(), Bytes{kCount});
    const Event received_all = out->Record();
    received_all.Wait();
    ASSERT_TRUE(received_all.reached());
    ASSERT_EQ(std::count(received, received + kCount / 2, std::byte{0}), kCount / 2) << round;
    ASSERT_EQ(std::count(received + kCount / 2, received + kCount, static_cast<std::byte>(round)),
              kCount / 2)
        << round;
  }
}

TEST_F(CudaDeviceTest, MemoryThatIsNotRegisteredIsCopiedAsWell) {
  std::vector<std::byte> host(kCount, std::byte{7});
  const auto buffer = device_->Allocate(Bytes{kCount}, "a buffer").value();
  const auto stream = NewStream("compute");
  stream->CopyToDevice(buffer.data(), host.data(), Bytes{kCount});
  ASSERT_TRUE(stream->Synchronize().ok());
  std::fill(host.begin(), host.end(), std::byte{0});
  stream->CopyToHost(host.data(), buffer.data(), Bytes{kCount});
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::count(host.begin(), host.end(), std::byte{7}), kCount);
}

TEST_F(CudaDeviceTest, CallsRunInOrderBehindTheWorkBeforeThem) {
  const auto host = device_->AllocateHost(Bytes{kCount}).value();
  const auto buffer = device_->Allocate(Bytes{kCount}, "a buffer").value();
  std::vector<int> order;
  std::byte seen{};
  const auto stream = NewStream("copy-out");
  Occupy(*stream, buffer);
  stream->CopyToHost(host.data(), buffer.data(), Bytes{kCount});
  stream->Call([&] {
    seen = host.data()[kCount - 1];
    order.push_back(1);
  });
  stream->Call([&] { order.push_back(2); });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(seen, std::byte{199});
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_F(CudaDeviceTest, WorkAndEventsBehindACallDoNotWaitForIt) {
  const auto buffer = device_->Allocate(4_KiB, "a buffer").value();
  const auto stream = NewStream("copy-out");
  std::latch recorded(1);
  bool called = false;
  stream->Call([&] {
    recorded.wait();
    called = true;
  });
  stream->Zero(buffer.data(), 4_KiB);
  stream->Record().Wait();  // never returns when the stream waits for the call
  recorded.count_down();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(called);
}

TEST_F(CudaDeviceTest, AStreamCarriesOutItsCallsBeforeItGoes) {
  const auto buffer = device_->Allocate(4_MiB, "a buffer").value();
  int calls = 0;
  {
    const auto stream = NewStream("copy-out");
    for (int i = 0; i < 3; ++i) {
      Occupy(*stream, buffer);
      stream->Call([&] { ++calls; });
    }
  }
  EXPECT_EQ(calls, 3);
}

TEST_F(CudaDeviceTest, AfterAFailureWorkIsSkippedAndCallsAreNot) {
  const auto host = device_->AllocateHost(4_KiB).value();
  const auto buffer = device_->Allocate(4_KiB, "a buffer").value();
  const auto stream = NewStream("compute");
  stream->Zero(buffer.data(), 4_KiB);
  stream->Launch([](cudaStream_t) -> Status {
    return CudaStatus(cudaErrorInvalidValue, "launching {}", "what fails");
  });
  std::fill_n(host.data(), 4096, std::byte{5});
  stream->CopyToHost(host.data(), buffer.data(), 4_KiB);
  bool launched = false;
  stream->Launch([&](cudaStream_t) -> Status {
    launched = true;
    return {};
  });
  bool called = false;
  stream->Call([&] { called = true; });
  for (int i = 0; i < 2; ++i) {
    const Status status = stream->Synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("stream compute"));
    EXPECT_THAT(status.error().message, HasSubstr("launching what fails"));
  }
  EXPECT_TRUE(called);
  EXPECT_FALSE(launched);
  EXPECT_EQ(host.data()[0], std::byte{5});
}

TEST_F(CudaDeviceTest, AnErrorOfATransferIsTheStatusOfTheStreamAsItIs) {
  const auto buffer = device_->Allocate(4_KiB, "a buffer").value();
  const auto stream = NewStream("comm");
  stream->Zero(buffer.data(), 4_KiB);
  stream->Transfer([](cudaStream_t) -> Status { return Error{ErrorCode::kIo, "rank 3 is gone"}; });
  bool ran = false;
  stream->Transfer([&](cudaStream_t) -> Status {
    ran = true;
    return Error{ErrorCode::kIo, "another"};
  });
  bool called = false;
  stream->Call([&] { called = true; });
  for (int i = 0; i < 2; ++i) {
    const Status status = stream->Synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.error().message, "rank 3 is gone");
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(called);
}

TEST_F(CudaDeviceTest, ATransferRunsInOrderAndDoesNotCountAsCompute) {
  const auto host = device_->AllocateHost(4_KiB).value();
  const auto buffer = device_->Allocate(4_KiB, "a buffer").value();
  const auto stream = NewStream("comm");
  stream->Zero(buffer.data(), 4_KiB);
  stream->Transfer([&](cudaStream_t handle) -> Status {
    return CudaStatus(cudaMemsetAsync(buffer.data(), 9, 4096, handle), "setting memory");
  });
  stream->CopyToHost(host.data(), buffer.data(), 4_KiB);
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::count(host.data(), host.data() + 4096, std::byte{9}), 4096);
  EXPECT_EQ(meter_.Totals().compute.count(), 0);
}

TEST_F(CudaDeviceTest, TheMeterGetsComputeAndWaitsForData) {
  const auto first = device_->Allocate(16_MiB, "a buffer").value();
  const auto second = device_->Allocate(16_MiB, "a buffer").value();
  const auto in = NewStream("copy-in");
  const auto compute = NewStream("compute");
  Occupy(*in, first);
  compute->Wait(in->Record(), WaitReason::kData);
  Occupy(*compute, second);
  ASSERT_TRUE(compute->Synchronize().ok());
  ASSERT_TRUE(in->Synchronize().ok());
  const ActivityTotals totals = meter_.Totals();
  EXPECT_GT(totals.compute.count(), 0);
  EXPECT_GE(totals.io_wait.count(), 0);
}

TEST_F(CudaDeviceTest, ComputeLiesBetweenItsEnqueueingAndTheSynchronisationBehindIt) {
  const auto buffer = device_->Allocate(4_MiB, "a buffer").value();
  const auto compute = NewStream("compute");
  for (int round = 0; round < 20; ++round) {
    const ActivityTotals before = meter_.Totals();
    {
      const ActivityScope update(&meter_, Lane::kUpdate);
      LetTheClockTick();
    }
    Occupy(*compute, buffer);
    ASSERT_TRUE(compute->Synchronize().ok());
    {
      const ActivityScope update(&meter_, Lane::kUpdate);
      LetTheClockTick();
    }
    const ActivityTotals after = meter_.Totals();
    EXPECT_GT(after.update, before.update);
    EXPECT_EQ(after.update_hidden, before.update_hidden);
  }
}

TEST_F(CudaDeviceTest, EventsOutliveTheirStream) {
  const auto buffer = device_->Allocate(4_KiB, "a buffer").value();
  Event event;
  {
    const auto stream = NewStream("compute");
    stream->Zero(buffer.data(), 4_KiB);
    event = stream->Record();
  }
  event.Wait();
  EXPECT_TRUE(event.reached());
}

}  // namespace
}  // namespace penstock::device
