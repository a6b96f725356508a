// The C interface with memory of a device: in which context a call works.
#include <thread>

#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

using CCudaContext = CudaTest;

/// Calls `work` on a thread without a current context, as autograd's are, which has none
/// afterwards.
template <typename Work>
void WithoutContext(Work work) {
  std::thread thread([&] {
    work();
    CUcontext after = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&after), 0);
    EXPECT_EQ(after, nullptr) << "the call has left its own";
  });
  thread.join();
}

TEST_F(CCudaContext, MemoryOfTheDeviceNeedsItsOption) {
  const TempFolder folder;
  CTraining without(kHomes[1], folder.Path(), "bf16");
  without.Fill();
  void* const anywhere = reinterpret_cast<void*>(uint64_t{1} << 62);
  penstock_engine* const engine = without.engine().handle;
  for (const bool null : {false, true}) {
    EXPECT_EQ(penstock_use_on(engine, 0, PENSTOCK_FORWARD, null ? nullptr : anywhere, nullptr),
              PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(penstock_error(), HasSubstr("made without the option \"cuda\""));
    EXPECT_EQ(
        penstock_gradient_on(engine, 0, 0, null ? nullptr : anywhere, PENSTOCK_BFLOAT16, nullptr),
        PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(penstock_error(), HasSubstr("made without the option \"cuda\""));
  }
}

TEST_F(CCudaContext, AThreadWithoutOneWorksInThatOfItsStream) {
  for (const Addresses addresses : {Addresses::kOfUnit, Addresses::kOfTensors}) {
    const TempFolder folder;
    CudaTraining training(kHomes[1], folder.Path(), "bf16", 1, addresses);
    const DeviceBytes gradient(2 * kElements[0]);
    WithoutContext([&] {  // the first call of all
      EXPECT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OK) << penstock_error();
    });
    WithoutContext(
        [&] { EXPECT_EQ(training.TryGradient(0, 0, gradient), PENSTOCK_OK) << penstock_error(); });
    EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
    training.Step();
  }
}

TEST_F(CCudaContext, TheFirstGradientOfAllMayComeFromAThreadWithoutOne) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  const DeviceBytes gradient(2 * kElements[0]);
  WithoutContext(
      [&] { EXPECT_EQ(training.TryGradient(0, 0, gradient), PENSTOCK_OK) << penstock_error(); });
  EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

TEST_F(CCudaContext, TheDefaultStreamIsThatOfTheFirstCallsContext) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  void* const to = training.weights(0).pointer();
  const auto use = [&] {
    return penstock_use_on(training.handle(), 0, PENSTOCK_FORWARD, to, nullptr);
  };
  WithoutContext([&] {
    EXPECT_EQ(use(), PENSTOCK_UNAVAILABLE) << "nothing says which device it is";
    EXPECT_THAT(penstock_error(), HasSubstr("has no current context"));
  });
  EXPECT_EQ(use(), PENSTOCK_OK) << penstock_error();
  WithoutContext([&] { EXPECT_EQ(use(), PENSTOCK_OK) << penstock_error(); });
  ASSERT_EQ(cuCtxSetCurrent(fake_cuda_context()), 0);
  EXPECT_EQ(use(), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("of another context than that of the first copy"));
  ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
  ASSERT_EQ(cuStreamSynchronize(nullptr), 0);
}

TEST_F(CCudaContext, AStreamOfAnotherDeviceIsRefused) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  const DeviceBytes gradient(2 * kElements[0]);
  ASSERT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OK);
  ASSERT_EQ(cuCtxSetCurrent(fake_cuda_context()), 0);
  {
    const Stream other;
    ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
    EXPECT_EQ(penstock_gradient_on(training.handle(), 0, 0, gradient.pointer(), PENSTOCK_BFLOAT16,
                                   other.get()),
              PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(penstock_error(), HasSubstr("an engine copies from and to one device"));
  }
  training.Step();
}

TEST_F(CCudaContext, TwoEnginesTrainOnTwoDevicesFromOneThread) {
  const TempFolder folders[2];
  const CUcontext contexts[] = {Context(), fake_cuda_context()};
  std::vector<std::unique_ptr<CudaTraining>> trainings;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuCtxSetCurrent(contexts[i]), 0);
    trainings.push_back(std::make_unique<CudaTraining>(kHomes[1], folders[i].Path(), "bf16", 3));
  }
  ASSERT_EQ(cuCtxSetCurrent(contexts[0]), 0);
  for (int step = 0; step < 2; ++step) {
    for (const auto& training : trainings) {
      // With the other's context current: that of the stream counts.
      for (uint32_t unit = 0; unit < kUnits; ++unit) {
        EXPECT_EQ(training->TryUse(unit, PENSTOCK_ASIDE), PENSTOCK_OK) << penstock_error();
      }
    }
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cuCtxSetCurrent(contexts[i]), 0);
      trainings[static_cast<size_t>(i)]->Step();
    }
    ASSERT_EQ(cuCtxSetCurrent(contexts[0]), 0);
  }
  EXPECT_EQ(fake_cuda_registered(), 6) << "weights, gradients and room of each";
  Trained trained[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuCtxSetCurrent(contexts[i]), 0);
    trainings[static_cast<size_t>(i)]->ReadInto(&trained[i]);
  }
  EXPECT_TRUE(trained[0] == trained[1]);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuCtxSetCurrent(contexts[i]), 0);
    trainings[static_cast<size_t>(i)].reset();
  }
  ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
}

}  // namespace
}  // namespace penstock::front
