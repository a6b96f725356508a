// What happens behind a kernel that throws and a transfer that fails, and which misuse is a bug.
#include <gmock/gmock.h>

#include <array>
#include <new>
#include <stdexcept>

#include "tests/base/denormals_flush.h"
#include "tests/device/support.h"

namespace penstock::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CpuFailureTest : public CpuDeviceTest {
 protected:
  static void Throw() { throw std::runtime_error("no primitive for this shape"); }
};

TEST_F(CpuFailureTest, AnExceptionInAKernelIsTheStatusOfTheStreamForEver) {
  auto stream = NewStream("compute");
  EXPECT_TRUE(stream->Synchronize().ok());
  stream->Launch(Throw);
  for (int i = 0; i < 2; ++i) {
    const Status status = stream->Synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr("compute"), HasSubstr("std::runtime_error")));
  }
}

TEST_F(CpuFailureTest, OutOfMemoryInAKernelKeepsItsKind) {
  auto stream = NewStream("compute");
  stream->Launch([] { throw std::bad_alloc(); });
  const Status status = stream->Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
}

TEST_F(CpuFailureTest, AnExceptionOfAnyTypeIsCaught) {
  auto stream = NewStream("compute");
  stream->Launch([] { throw 42; });
  EXPECT_FALSE(stream->Synchronize().ok());
}

TEST_F(CpuFailureTest, KernelsAndCopiesBehindAFailureAreSkipped) {
  auto stream = NewStream("compute");
  DeviceBuffer buffer = std::move(device_->Allocate(1_B, "buffer")).value();
  std::array<std::byte, 1> host = {std::byte{7}};
  bool ran = false;
  stream->Zero(buffer.data(), 1_B);
  stream->Launch(Throw);
  stream->Launch([&] { ran = true; });
  stream->CopyToDevice(buffer.data(), host.data(), 1_B);
  EXPECT_FALSE(stream->Synchronize().ok());
  EXPECT_FALSE(ran);
  EXPECT_EQ(*buffer.data(), std::byte{0});
  *buffer.data() = std::byte{9};
  stream->CopyToHost(host.data(), buffer.data(), 1_B);
  stream->Zero(buffer.data(), 1_B);
  EXPECT_FALSE(stream->Synchronize().ok());
  EXPECT_EQ(host[0], std::byte{7});
  EXPECT_EQ(*buffer.data(), std::byte{9});
}

TEST_F(CpuFailureTest, CallsBehindAFailureStillRun) {
  auto stream = NewStream("compute");
  bool released = false;
  stream->Launch(Throw);
  stream->Call([&] { released = true; });
  EXPECT_FALSE(stream->Synchronize().ok());
  EXPECT_TRUE(released);
}

TEST_F(CpuFailureTest, ACallBehindAFailureStillComesAfterTheWaitBeforeIt) {
  auto stream = NewStream("compute");
  auto other_is_done = std::make_shared<ManualEvent>();
  bool order_held = false;
  stream->Launch(Throw);
  stream->Wait(Event(other_is_done));
  stream->Call([&] { order_held = other_is_done->Reached(); });
  other_is_done->AwaitWaiter();  // never returns when a failed stream skips its waits
  other_is_done->Fire();
  EXPECT_FALSE(stream->Synchronize().ok());
  EXPECT_TRUE(order_held);
}

TEST_F(CpuFailureTest, NoThreadHangsOnAnEventAfterAFailureAndOtherStreamsContinue) {
  auto failing = NewStream("failing");
  auto other = NewStream("other");
  bool ran = false;
  failing->Launch(Throw);
  failing->Launch([] {});
  const Event event = failing->Record();
  other->Wait(event, WaitReason::kData);
  other->Launch([&] { ran = true; });
  EXPECT_TRUE(other->Synchronize().ok());
  EXPECT_TRUE(ran);
  event.Wait();
  EXPECT_FALSE(failing->Synchronize().ok());
}

TEST_F(CpuFailureTest, TheFirstFailureIsTheOneThatIsReported) {
  auto stream = NewStream("compute");
  stream->Launch([] { throw std::length_error("first"); });
  stream->Launch([] { throw std::out_of_range("second"); });
  const Status status = stream->Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("std::length_error"));
}

TEST_F(CpuFailureTest, AnErrorOfATransferIsTheStatusOfTheStreamAsItIs) {
  auto stream = NewStream("comm");
  stream->Transfer([]() -> Status { return Error{ErrorCode::kIo, "rank 3 is gone"}; });
  for (int i = 0; i < 2; ++i) {
    const Status status = stream->Synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.error().message, "rank 3 is gone");
  }
}

TEST_F(CpuFailureTest, AnExceptionInATransferIsItsFailureToo) {
  auto stream = NewStream("comm");
  stream->Transfer([]() -> Status { throw std::runtime_error("the socket is closed"); });
  const Status status = stream->Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(status.error().message,
              AllOf(HasSubstr("comm"), HasSubstr("transfer"), HasSubstr("std::runtime_error")));
}

TEST_F(CpuFailureTest, WorkBehindAFailedTransferIsSkippedAndCallsAreNot) {
  auto stream = NewStream("comm");
  DeviceBuffer buffer = std::move(device_->Allocate(1_B, "buffer")).value();
  std::array<std::byte, 1> host = {std::byte{7}};
  bool ran = false;
  bool called = false;
  stream->Zero(buffer.data(), 1_B);
  stream->Transfer([]() -> Status { return Error{ErrorCode::kIo, "first"}; });
  stream->Transfer([&]() -> Status {
    ran = true;
    return Error{ErrorCode::kIo, "second"};
  });
  stream->Launch([&] { ran = true; });
  stream->CopyToDevice(buffer.data(), host.data(), 1_B);
  stream->Call([&] { called = true; });
  const Status status = stream->Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "first");
  EXPECT_FALSE(ran);
  EXPECT_TRUE(called);
  EXPECT_EQ(*buffer.data(), std::byte{0});
}

TEST_F(CpuFailureTest, AFailedKernelEndsItsTimeInTheMeter) {
  auto stream = NewStream("compute");
  stream->Launch(Throw);
  EXPECT_FALSE(stream->Synchronize().ok());
  const auto before = meter_.Totals().compute;
  LetTheClockTick();
  EXPECT_EQ(meter_.Totals().compute, before);
}

class CpuMisuseDeathTest : public CpuDeviceTest {
 protected:
  void SetUp() override {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    CpuDeviceTest::SetUp();
  }
};

TEST_F(CpuMisuseDeathTest, ACopyToMemoryThatIsNotTheDevicesIsABug) {
  auto stream = NewStream("copy-in");
  std::array<std::byte, 8> host{};
  EXPECT_DEATH(stream->CopyToDevice(host.data(), host.data(), 8_B), "not device memory");
}

TEST_F(CpuMisuseDeathTest, FeedingAStreamFromACallIsABug) {
  auto stream = NewStream("compute");
  auto other = NewStream("other");
  EXPECT_DEATH(
      {
        stream->Call([&] { other->Call([] {}); });
        (void)stream->Synchronize();
      },
      "is fed by a kernel or a call");
}

TEST_F(CpuMisuseDeathTest, AStreamThatWouldFlushDenormalsIsABug) {
  EXPECT_DEATH(
      {
        const DenormalsFlush flush(kFlushes[0]);
        (void)NewStream("compute")->Synchronize();
      },
      "stream compute: a library has denormals flushed to zero");
}

TEST_F(CpuMisuseDeathTest, ACallThatThrowsIsABug) {
  auto stream = NewStream("compute");
  EXPECT_DEATH(
      {
        stream->Call([] { throw std::runtime_error("oops"); });
        (void)stream->Synchronize();
      },
      "a call has thrown: std::runtime_error");
}

}  // namespace
}  // namespace penstock::device
