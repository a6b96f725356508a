// The CPU device's memory, and what the CUDA device says where there is none.
#include <gmock/gmock.h>

#include <cstdint>

#include "tests/device/support.h"

namespace penstock::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST_F(CpuDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->kind(), Kind::kCpu);
  EXPECT_STREQ(ToString(device_->kind()), "cpu");
  EXPECT_STREQ(ToString(Kind::kCuda), "cuda");
  EXPECT_THAT(device_->name(), MatchesRegex("cpu \\(.+, [0-9]+ cores?\\)"));
  EXPECT_EQ(device_->pci_bus_id(), "") << "its memory is the host's";
}

TEST_F(CpuDeviceTest, HasAHardLimitAndNamesWhatDoesNotFit) {
  EXPECT_EQ(device_->limit(), 1_MiB);
  const DeviceBuffer all = std::move(device_->Allocate(1_MiB, "parameters")).value();
  EXPECT_EQ(device_->used(), 1_MiB);
  const Result<DeviceBuffer> more = device_->Allocate(1_B, "one logit");
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, ErrorCode::kBudget);
  EXPECT_THAT(more.error().message, AllOf(HasSubstr("one logit"), HasSubstr("1048832 bytes"),
                                          HasSubstr("1048576 bytes"), HasSubstr("device_memory")));
}

TEST_F(CpuDeviceTest, BuffersAreAlignedAndUsableAtEverySize) {
  for (const Bytes size : {1_B, 255_B, 256_B, 257_B, 4096_B}) {
    const DeviceBuffer buffer = std::move(device_->Allocate(size, "buffer")).value();
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kDeviceAlignment.value, 0u);
    for (uint64_t i = 0; i < size.value; ++i) buffer.as<unsigned char>()[i] = 1;
  }
}

TEST_F(CpuDeviceTest, AnEmptyBufferTakesNothing) {
  const Result<DeviceBuffer> none = device_->Allocate(0_B, "nothing");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->size(), 0_B);
  EXPECT_EQ(device_->used(), 0_B);
}

TEST_F(CpuDeviceTest, ABufferGivesItselfBackWhenItGoesOutOfScope) {
  {
    const DeviceBuffer buffer = std::move(device_->Allocate(300_B, "buffer")).value();
    EXPECT_EQ(device_->used(), 512_B) << "sizes are rounded up to kDeviceAlignment";
  }
  EXPECT_EQ(device_->used(), 0_B);
  EXPECT_EQ(device_->peak(), 512_B);
}

TEST_F(CpuDeviceTest, AMovedBufferGivesItselfBackOnce) {
  DeviceBuffer first = std::move(device_->Allocate(256_B, "first")).value();
  std::byte* const data = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  // NOLINTNEXTLINE(bugprone-use-after-move, clang-analyzer-cplusplus.Move): that is what is tested
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(device_->used(), 256_B);
  second = DeviceBuffer();
  EXPECT_EQ(device_->used(), 0_B);
}

TEST_F(CpuDeviceTest, AssigningToABufferGivesItsOldMemoryBackAtOnce) {
  DeviceBuffer first = std::move(device_->Allocate(256_B, "first")).value();
  DeviceBuffer second = std::move(device_->Allocate(512_B, "second")).value();
  first = std::move(second);
  EXPECT_EQ(device_->used(), 512_B);
  EXPECT_EQ(first.size(), 512_B);
}

TEST_F(CpuDeviceTest, AKernelMayLetABufferGo) {
  auto stream = NewStream("compute");
  auto buffer = std::make_shared<DeviceBuffer>();
  *buffer = std::move(device_->Allocate(256_B, "scratch")).value();
  stream->Call([buffer = std::move(buffer)]() mutable { buffer.reset(); });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(device_->used(), 0_B);
}

TEST(CreateCpuDevice, WithoutMemoryEveryAllocationIsRefused) {
  const auto device = std::move(CreateCpuDevice(DeviceOptions{.memory = 0_B})).value();
  const Result<DeviceBuffer> buffer = device->Allocate(1_B, "buffer");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, ErrorCode::kBudget);
}

TEST(CreateCpuDevice, MoreThanTheAddressSpaceIsOutOfMemory) {
  const auto device = CreateCpuDevice(DeviceOptions{.memory = Bytes{uint64_t{1} << 62}});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, ErrorCode::kOutOfMemory);
}

TEST(CreateCudaDevice, SaysInOneLineWhyThereIsNone) {
  const auto device = CreateCudaDevice(DeviceOptions{.memory = 1_MiB});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(device.error().message, AllOf(HasSubstr("CUDA"), HasSubstr("--device cpu")));
  EXPECT_EQ(device.error().message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace penstock::device
