// The fake driver finds what it is there to find.
#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

class FakeCuda : public CudaTest {
 protected:
  void TearDown() override {
    stream_.Synchronize();
    if (registered_) cuMemHostUnregister(host_.data());
    CudaTest::TearDown();
  }
  void Register() {
    ASSERT_EQ(cuMemHostRegister_v2(host_.data(), host_.size(), 1), 0);
    registered_ = true;
  }
  CUresult In() {
    return cuMemcpyHtoDAsync_v2(Address(), host_.data(), host_.size(), stream_.get());
  }
  CUresult Out() {
    return cuMemcpyDtoHAsync_v2(host_.data(), Address(), host_.size(), stream_.get());
  }
  CUdeviceptr Address() const { return reinterpret_cast<CUdeviceptr>(device_.pointer()); }
  std::string Noted() {
    stream_.Synchronize();
    return fake_cuda_violations();
  }

  std::vector<unsigned char> host_ = std::vector<unsigned char>(10000, 7);
  DeviceBytes device_{10000};
  Stream stream_;
  bool registered_ = false;
};

TEST_F(FakeCuda, CopiesGoBothWaysInOrder) {
  Register();
  EXPECT_EQ(In(), 0);
  EXPECT_EQ(Noted(), "");
  stream_.Launch([data = device_.bytes()] { data[0] = std::byte{9}; });
  EXPECT_EQ(Out(), 0);
  EXPECT_EQ(Noted(), "");
  EXPECT_EQ(host_[0], 9);
  EXPECT_EQ(host_[1], 7);
}

TEST_F(FakeCuda, MemoryThatIsNotRegistered) {
  EXPECT_EQ(In(), 0);
  EXPECT_THAT(Noted(), HasSubstr("host memory that is not registered"));
}

TEST_F(FakeCuda, ARegistrationThatEndsUnderACopy) {
  Register();
  fake_cuda_pause();
  EXPECT_EQ(In(), 0);
  EXPECT_EQ(cuMemHostUnregister(host_.data()), 0);
  registered_ = false;
  fake_cuda_resume();
  EXPECT_THAT(Noted(), HasSubstr("a registration ended while a copy"));
}

TEST_F(FakeCuda, ASourceThatChangesAndADestinationThatIsReadOrWrittenTooEarly) {
  Register();
  fake_cuda_pause();
  EXPECT_EQ(In(), 0);
  host_[5] = 1;
  fake_cuda_resume();
  EXPECT_THAT(Noted(), HasSubstr("what a copy reads was changed"));
  fake_cuda_pause();
  EXPECT_EQ(Out(), 0);
  EXPECT_EQ(host_[5], 0xff);
  host_[5] = 3;
  fake_cuda_resume();
  EXPECT_THAT(Noted(), HasSubstr("what a copy writes was changed"));
}

TEST_F(FakeCuda, MemoryOfTheDeviceThatIsFreed) {
  Register();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc_v2(&address, 100), 0);
  fake_cuda_pause();
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(address, host_.data(), 100, stream_.get()), 0);
  EXPECT_EQ(cuMemFree_v2(address), 0);
  fake_cuda_resume();
  const std::string noted = Noted();
  EXPECT_THAT(noted, HasSubstr("freed while a copy of it was under way"));
  EXPECT_THAT(noted, HasSubstr("a copy uses device memory that is not allocated"));
  EXPECT_NE(cuMemcpyHtoDAsync_v2(address, host_.data(), 100, stream_.get()), 0);
  EXPECT_THAT(Noted(), HasSubstr("not allocated"));
}

TEST_F(FakeCuda, AllocationsBeyondTheDevicesMemoryFailAndThePeakIsCounted) {
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&free, &total), 0);
  const size_t used = total - free;
  fake_cuda_resize(used + 100);
  fake_cuda_peak();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  EXPECT_EQ(cuMemAlloc_v2(&first, 60), 0);
  EXPECT_EQ(cuMemAlloc_v2(&second, 41), 2);
  EXPECT_EQ(cuMemAlloc_v2(&second, 40), 0);
  EXPECT_EQ(cuMemFree_v2(second), 0);
  EXPECT_EQ(cuMemGetInfo_v2(&free, &total), 0);
  EXPECT_EQ(free, 40U);
  EXPECT_EQ(total, used + 100);
  EXPECT_EQ(fake_cuda_peak(), used + 100);
  EXPECT_EQ(fake_cuda_peak(), used + 60) << "it was taken a moment before";
  EXPECT_EQ(cuMemFree_v2(first), 0);
  fake_cuda_resize(size_t{1} << 40);
}

TEST_F(FakeCuda, StreamsAndEventsThatAreDestroyedInUse) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
  ASSERT_EQ(cuEventCreate(&event, 2), 0);
  fake_cuda_pause();
  EXPECT_EQ(fake_cuda_launch(
                stream, [](void*) {}, nullptr),
            0);
  EXPECT_EQ(cuEventRecord(event, stream), 0);
  EXPECT_EQ(cuEventDestroy_v2(event), 0);
  std::thread destroys([&] {
    cuCtxSetCurrent(Context());
    EXPECT_EQ(cuStreamDestroy_v2(stream), 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  fake_cuda_resume();
  destroys.join();
  const std::string noted = Noted();
  EXPECT_THAT(noted, HasSubstr("an event was destroyed while"));
  EXPECT_THAT(noted, HasSubstr("a stream was destroyed while"));
}

TEST_F(FakeCuda, HostFunctionsThatCallTheDriver) {
  EXPECT_EQ(cuLaunchHostFunc(
                stream_.get(),
                [](void* stream) { cuStreamSynchronize(static_cast<CUstream>(stream)); }, nullptr),
            0);
  EXPECT_THAT(Noted(), HasSubstr("cuStreamSynchronize was called by a host function"));
}

}  // namespace
}  // namespace penstock::front
