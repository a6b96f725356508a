// The C interface with memory of a device: what waits for copies, and what does not.
#include <atomic>
#include <thread>

#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using CCudaWaits = CudaTest;

/// While no stream goes on, calls `enqueue`, and `wait` on another thread, which must not return
/// before streams go on.
template <typename Enqueue, typename Wait>
void WhilePaused(Enqueue enqueue, Wait wait) {
  fake_cuda_pause();
  enqueue();
  std::atomic<bool> returned = false;
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  std::thread waits([&] {
    cuCtxSetCurrent(context);
    wait();
    returned = true;
  });
  for (int i = 0; i < 100 && !returned; ++i) {  // time to do what it must not do yet
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_FALSE(returned) << "it did not wait for the copies under way";
  fake_cuda_resume();
  waits.join();
}

TEST_F(CCudaWaits, NeitherUseNorGradientWaitsForItsCopy) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  ASSERT_EQ(training.TryUse(0, PENSTOCK_ASIDE), PENSTOCK_OK);
  training.copies().Synchronize();
  const DeviceBytes gradient(2 * kElements[0]);
  fake_cuda_pause();
  const uint64_t before = fake_cuda_copies();
  EXPECT_EQ(training.TryUse(1, PENSTOCK_FORWARD), PENSTOCK_OK);
  EXPECT_EQ(training.TryGradient(1, 0, gradient), PENSTOCK_OK);
  EXPECT_GT(fake_cuda_copies(), before);
  fake_cuda_resume();
  training.copies().Synchronize();
  EXPECT_EQ(training.Weights(1, 0).bytes, FirstWeights(PENSTOCK_BFLOAT16, 1, 0).bytes);
}

TEST_F(CCudaWaits, TheEndOfAStepWaitsForWeightsThatWereUsedAfterItsNorm) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  training.ForwardAndBackward(0);
  double norm = 0;
  int finite = 0;
  ASSERT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK);
  WhilePaused(
      [&] { EXPECT_EQ(training.TryUse(2, PENSTOCK_ASIDE), PENSTOCK_OK) << penstock_error(); },
      [&] {
        penstock_outcome outcome{};
        EXPECT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
      });
  EXPECT_EQ(training.Weights(2, 0).bytes, FirstWeights(PENSTOCK_BFLOAT16, 2, 0).bytes)
      << "the weights as they were when they were used";
}

TEST_F(CCudaWaits, TheNormWaitsForGradients) {
  for (const uint64_t micro_batches : {1, 3}) {  // all of a step's, or some, which the norm ends
    const TempFolder folder;
    CudaTraining training(kHomes[1], folder.Path(), "bf16", micro_batches);
    const DeviceBytes wide(2 * kElements[0]);
    const DeviceBytes narrow(4 * kElements[1]);
    std::memset(wide.bytes(), 0, wide.size());
    std::memset(narrow.bytes(), 0, narrow.size());
    double norm = -1;
    int finite = 0;
    WhilePaused(
        [&] {
          for (uint32_t unit = 0; unit < kUnits; ++unit) {
            EXPECT_EQ(training.TryGradient(unit, 0, wide), PENSTOCK_OK);
            EXPECT_EQ(training.TryGradient(unit, 1, narrow), PENSTOCK_OK);
          }
        },
        [&] { EXPECT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK); });
    EXPECT_EQ(norm, 0);
    EXPECT_EQ(finite, 1);
  }
}

TEST_F(CCudaWaits, ADroppedStepWaitsForItsCopies) {
  const TempFolder folder;
  CudaTraining training(kHomes[3], folder.Path(), "bf16");
  const DeviceBytes gradient(2 * kElements[0]);
  WhilePaused(
      [&] { EXPECT_EQ(training.TryGradient(1, 0, gradient), PENSTOCK_OK); },
      [&] { EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK) << penstock_error(); });
  training.Step();
}

TEST_F(CCudaWaits, AGradientOfTheHostWaitsForThoseOfTheDevice) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "fp32", 2);
  const DeviceBytes gradient(4 * kElements[0]);
  const Values values(PENSTOCK_FLOAT32, kElements[0]);
  WhilePaused(
      [&] { EXPECT_EQ(training.TryGradient(1, 0, gradient), PENSTOCK_OK); },
      [&] {
        EXPECT_EQ(penstock_gradient(training.handle(), 1, 0, values.bytes.data(), PENSTOCK_FLOAT32),
                  PENSTOCK_OK);
      });
  EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

TEST_F(CCudaWaits, NoGradientWaitsWhileRoomIsLeftAndTheOneThatDoesIsCounted) {
  constexpr uint64_t kMicroBatches = 3;
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16", kMicroBatches);
  const auto waits = [&] {
    return training.host().engine().Counters()["gradient_waits"].get<uint64_t>();
  };
  const DeviceBytes wide(2 * kElements[0]);
  const DeviceBytes narrow(4 * kElements[1]);
  std::memset(wide.bytes(), 0, wide.size());
  std::memset(narrow.bytes(), 0, narrow.size());
  ASSERT_EQ(training.TryUse(0, PENSTOCK_ASIDE), PENSTOCK_OK);
  fake_cuda_pause();  // nothing that arrives is added
  for (uint64_t batch = 0; batch < kMicroBatches; ++batch) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {  // 24 gradients: more than there were pieces
      EXPECT_EQ(training.TryGradient(unit, 0, wide), PENSTOCK_OK);
      EXPECT_EQ(training.TryGradient(unit, 1, narrow), PENSTOCK_OK);
    }
  }
  EXPECT_EQ(waits(), 0);
  fake_cuda_resume();
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  // fp32 for a bf16 weight: twice the room.
  const DeviceBytes twice(4 * kElements[0]);
  std::memset(twice.bytes(), 0, twice.size());
  const auto give = [&](uint32_t unit) {
    return penstock_gradient_on(training.handle(), unit, 0, twice.pointer(), PENSTOCK_FLOAT32,
                                training.copies().get());
  };
  WhilePaused(
      [&] {
        for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(give(i % kUnits), PENSTOCK_OK);
      },
      [&] { EXPECT_EQ(give(0), PENSTOCK_OK); });
  EXPECT_EQ(waits(), 1);
  EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

TEST_F(CCudaWaits, ZerosOfTheHostWaitForNoGradientOfTheDevice) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16", 2);
  const DeviceBytes gradient(2 * kElements[0]);
  std::memset(gradient.bytes(), 0, gradient.size());
  ASSERT_EQ(training.TryUse(0, PENSTOCK_ASIDE), PENSTOCK_OK);
  fake_cuda_pause();
  EXPECT_EQ(training.TryGradient(1, 0, gradient), PENSTOCK_OK);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      EXPECT_EQ(penstock_gradient(training.handle(), unit, tensor, nullptr, PENSTOCK_FLOAT32),
                PENSTOCK_OK);
    }
  }
  fake_cuda_resume();
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  EXPECT_EQ(outcome.grad_norm, 0);
}

TEST_F(CCudaWaits, WeightsOfTheDriveWaitForNoGradientThatIsOnItsWay) {
  const TempFolder folder;
  CudaTraining training(kHomes[3], folder.Path(), "bf16");
  training.Step();
  const DeviceBytes gradient(2 * kElements[0]);
  const Stream gradients;
  std::atomic<bool> computed = false;  // the gradient, by a backward that takes long
  gradients.Launch([&] {
    while (!computed) std::this_thread::yield();
  });
  ASSERT_EQ(penstock_gradient_on(training.handle(), 0, 0, gradient.pointer(), PENSTOCK_BFLOAT16,
                                 gradients.get()),
            PENSTOCK_OK);
  std::atomic<bool> returned = false;
  std::thread uses([&] {
    // More units than there are blocks: each takes the blocks of the one before.
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      EXPECT_EQ(training.TryUse(unit, PENSTOCK_ASIDE), PENSTOCK_OK) << penstock_error();
    }
    returned = true;
  });
  for (int i = 0; i < 5000 && !returned; ++i) {  // only if it fails does this take so long
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(returned) << "weights waited for a gradient";
  computed = true;
  uses.join();
  EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

TEST_F(CCudaWaits, ClosingWaitsForCopiesBothWaysAndEndsTheRegistrationOnAnyThread) {
  for (const Home& home : {kHomes[1], kHomes[3]}) {
    const TempFolder folder;
    const size_t events = fake_cuda_events();
    const DeviceBytes gradient(2 * kElements[0]);
    const Stream stream;
    CEngine engine(ConfigOf(home, folder.Path()), ModelOf("bf16"),
                   {{"folders", {folder.Path()}}, {"cuda", true}});
    std::vector<Values> first;
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      first.clear();
      const void* tensors[kTensors];
      for (uint32_t i = 0; i < kTensors; ++i) {
        first.push_back(FirstWeights(i == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, i));
      }
      for (uint32_t i = 0; i < kTensors; ++i) tensors[i] = first[i].bytes.data();
      ASSERT_EQ(penstock_fill(engine.handle, unit, tensors), PENSTOCK_OK);
    }
    const DeviceBytes weights(engine.Describe()["units"][0]["bytes"].get<size_t>());
    WhilePaused(
        [&] {
          EXPECT_EQ(penstock_gradient_on(engine.handle, 1, 0, gradient.pointer(), PENSTOCK_BFLOAT16,
                                         stream.get()),
                    PENSTOCK_OK);
          if (home.name != "host") return;  // no room for a whole unit that is under way
          EXPECT_EQ(
              penstock_use_on(engine.handle, 0, PENSTOCK_ASIDE, weights.pointer(), stream.get()),
              PENSTOCK_OK);
        },
        [&] {
          cuCtxSetCurrent(nullptr);
          penstock_close(std::exchange(engine.handle, nullptr));
        });
    EXPECT_EQ(fake_cuda_registered(), 0);
    EXPECT_EQ(fake_cuda_events(), events);
  }
}

TEST_F(CCudaWaits, AWeightOfTheDriveStaysInMemoryUntilItsCopyHasCompleted) {
  const TempFolder folder;
  CudaTraining training(kHomes[3], folder.Path(), "bf16");
  training.Step();
  // More units than there are blocks: each takes the blocks of the one before.
  WhilePaused([] {},
              [&] {
                for (uint32_t unit = 0; unit < kUnits; ++unit) {
                  EXPECT_EQ(training.TryUse(unit, PENSTOCK_ASIDE), PENSTOCK_OK) << penstock_error();
                }
              });
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    const UnitBuffer expected = training.host().Use(unit, PENSTOCK_ASIDE);
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      EXPECT_EQ(training.Weights(unit, tensor).bytes, expected.Tensor(tensor).bytes) << unit;
    }
  }
}

}  // namespace
}  // namespace penstock::front
