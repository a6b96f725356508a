// The C interface with memory of a device whose driver fails.
#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

constexpr CUresult kIllegalAddress = 700;

using CCudaFailure = CudaTest;

/// Continues until a call fails; returns that call's result.
std::string TrainUntilFailure(CudaTraining& training) {
  std::list<DeviceBytes> gradients;
  struct Synchronize {  // before the gradients go
    ~Synchronize() { stream.Synchronize(); }
    Stream& stream;
  } const synchronize{training.copies()};
  for (int step = 0; step < 20; ++step) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      if (training.TryUse(unit, PENSTOCK_FORWARD) != PENSTOCK_OK) return penstock_error();
      for (const uint32_t tensor : {0U, 1U}) {
        const DeviceBytes& gradient =
            gradients.emplace_back(SizeOfCode(training.DTypeOf(tensor)) * kElements[tensor]);
        if (training.TryGradient(unit, tensor, gradient) != PENSTOCK_OK) return penstock_error();
      }
    }
    penstock_outcome outcome{};
    if (penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome) != PENSTOCK_OK) {
      return penstock_error();
    }
  }
  return "nothing failed";
}

TEST_F(CCudaFailure, ACopyThatFailsEndsTheEngineWithTheDriversNameForIt) {
  for (const char* function : {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventCreate",
                               "cuEventRecord", "cuEventSynchronize"}) {
    for (const Home& home : {kHomes[1], kHomes[3]}) {
      for (const unsigned after : {0U, 3U}) {
        const TempFolder folder;
        CudaTraining training(home, folder.Path(), "bf16");
        // Events are used again: the first call of a training may be the only one that makes one.
        fake_cuda_fail(function, function == std::string("cuEventCreate") ? 0 : after,
                       kIllegalAddress);
        const std::string said = TrainUntilFailure(training);
        EXPECT_THAT(said, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)")) << function;
        EXPECT_THAT(said, HasSubstr("cuda: ")) << function;
        double norm = 0;
        int finite = 0;
        EXPECT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_UNAVAILABLE);
        EXPECT_EQ(penstock_error(), said);
        EXPECT_EQ(penstock_begin_commit(training.handle(), "{}"), PENSTOCK_UNAVAILABLE);
      }
    }
  }
}

TEST_F(CCudaFailure, ADeviceThatFailsLeavesNoCallWaiting) {
  for (const uint64_t micro_batches : {1, 3}) {
    const TempFolder folder;
    const DeviceBytes wide(2 * kElements[0]);
    const DeviceBytes narrow(4 * kElements[1]);
    CudaTraining training(kHomes[1], folder.Path(), "bf16", micro_batches);
    fake_cuda_pause();
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      EXPECT_EQ(training.TryUse(unit, PENSTOCK_FORWARD), PENSTOCK_OK);
      EXPECT_EQ(training.TryGradient(unit, 0, wide), PENSTOCK_OK);
      EXPECT_EQ(training.TryGradient(unit, 1, narrow), PENSTOCK_OK);
    }
    fake_cuda_break(kIllegalAddress);
    fake_cuda_resume();
    penstock_outcome outcome{};
    EXPECT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome),
              PENSTOCK_UNAVAILABLE);
    EXPECT_THAT(penstock_error(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_EQ(training.TryUse(1, PENSTOCK_ASIDE), PENSTOCK_UNAVAILABLE);
    EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_UNAVAILABLE);
    fake_cuda_break(0);  // so that the test can end what is its own
    training.copies().Synchronize();
  }
}

TEST_F(CCudaFailure, MemoryThatCannotBeRegisteredIsToldAndMayBeTriedAgain) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  for (const unsigned after : {0U, 1U, 2U}) {
    fake_cuda_fail("cuMemHostRegister_v2", after, 2);
    EXPECT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OUT_OF_MEMORY);
    EXPECT_THAT(penstock_error(), HasSubstr("of host memory: CUDA_ERROR_OUT_OF_MEMORY (2)"));
    EXPECT_EQ(fake_cuda_registered(), 0);
  }
  training.Step();
  EXPECT_EQ(fake_cuda_registered(), 3) << "weights, gradients, and the room of gradients";
}

TEST_F(CCudaFailure, AContextThatIsNotFoundOrSetIsToldAndMayBeTriedAgain) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  const DeviceBytes gradient(2 * kElements[0]);
  for (const bool first : {true, false}) {  // copies of all, or not
    for (const char* function : {"cuStreamGetCtx", "cuCtxGetCurrent", "cuCtxSetCurrent"}) {
      for (const bool use : {true, false}) {
        ASSERT_EQ(cuCtxSetCurrent(nullptr), 0);
        fake_cuda_fail(function, 0, kIllegalAddress);
        EXPECT_EQ(use ? training.TryUse(0, PENSTOCK_FORWARD) : training.TryGradient(0, 0, gradient),
                  PENSTOCK_UNAVAILABLE)
            << function;
        EXPECT_THAT(penstock_error(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
        EXPECT_THAT(penstock_error(), HasSubstr("context"));
      }
    }
    ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
    EXPECT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OK) << first;
    EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
  }
  training.Step();
}

TEST_F(CCudaFailure, AnAddressThatIsNoneOfTheDeviceIsTheDriversError) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  void* const nowhere = reinterpret_cast<void*>(uint64_t{1} << 61);
  EXPECT_EQ(penstock_use_on(training.handle(), 0, PENSTOCK_FORWARD, nowhere, nullptr),
            PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(penstock_error(), HasSubstr("to the device: CUDA_ERROR_INVALID_VALUE (1)"));
  EXPECT_THAT(fake_cuda_violations(), HasSubstr("not allocated"));
}

}  // namespace
}  // namespace penstock::front
