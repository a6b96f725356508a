// The C interface with memory of a device: bits, sums, plans, refusals.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3;

template <typename Training>
Trained TrainOf(Training& training) {
  Trained trained;
  for (int step = 0; step < kSteps; ++step) trained.norms.push_back(training.Step().grad_norm);
  training.ReadInto(&trained);
  return trained;
}

Trained TrainOnTheHost(const std::string& dtype, uint64_t micro_batches) {
  const TempFolder folder;
  CTraining training(kHomes[1], folder.Path(), dtype, micro_batches, json::object(),
                     {{"gradient_accumulation_steps", micro_batches}});
  training.Fill();
  return TrainOf(training);
}

using CCuda = CudaTest;

TEST_F(CCuda, EveryHomeAndDtypeTrainsToTheBitsOfMemoryOfTheHost) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    for (const uint64_t micro_batches : {1, 3}) {
      const Trained expected = TrainOnTheHost(dtype, micro_batches);
      for (const Home& home : kHomes) {
        if (home.optimizer == "none") continue;  // c_device_home_test.cc
        for (const Addresses addresses : {Addresses::kOfUnit, Addresses::kOfTensors}) {
          const TempFolder folder;
          CudaTraining training(home, folder.Path(), dtype, micro_batches, addresses);
          EXPECT_TRUE(TrainOf(training) == expected) << dtype << ", " << home.name;
        }
      }
    }
  }
}

/// A model of one tensor, whose gradient comes in several pieces.
TEST_F(CCuda, ALargeGradientOfAnotherDtypeComesInPieces) {
  constexpr uint64_t kLarge = (5 << 20) + 77;  // four bytes each, in pieces of 4 MiB
  const json tensor{{"name", "w"}, {"shape", json::array({kLarge})}, {"group", 0}};
  const json unit{{"name", "u"}, {"tensors", json::array({tensor})}};
  const json group{{"name", "all"}, {"dtype", "bf16"}};
  const json model{{"units", json::array({unit})}, {"groups", json::array({group})}};
  std::vector<float> gradient(kLarge);
  for (uint64_t i = 0; i < kLarge; ++i) gradient[i] = 1e-3F * static_cast<float>(i % 1013) - 0.5F;
  const std::vector<uint16_t> zeros(kLarge);
  const void* const first[] = {zeros.data()};
  const DeviceBytes on_device(4 * kLarge);
  std::memcpy(on_device.bytes(), gradient.data(), 4 * kLarge);
  const Stream stream;
  std::vector<float> masters[2];
  for (const bool cuda : {false, true}) {
    const TempFolder folder;
    const CEngine engine(ConfigOf(kHomes[1], folder.Path()), model,
                         {{"folders", {folder.Path()}}, {"cuda", cuda}});
    ASSERT_EQ(penstock_fill(engine.handle, 0, first), PENSTOCK_OK);
    const int code =
        cuda ? penstock_gradient_on(engine.handle, 0, 0, on_device.pointer(), PENSTOCK_FLOAT32,
                                    stream.get())
             : penstock_gradient(engine.handle, 0, 0, gradient.data(), PENSTOCK_FLOAT32);
    ASSERT_EQ(code, PENSTOCK_OK) << penstock_error();
    penstock_outcome outcome{};
    ASSERT_EQ(penstock_end_step(engine.handle, kGroups, 1, 0, 1, &outcome), PENSTOCK_OK);
    masters[cuda].resize(kLarge);
    ASSERT_EQ(penstock_read(engine.handle, 0, 0, PENSTOCK_MASTER, 0, kLarge, masters[cuda].data()),
              PENSTOCK_OK);
  }
  EXPECT_TRUE(masters[0] == masters[1]);
  EXPECT_NE(masters[0][0], 0);
}

TEST_F(CCuda, GradientsOfHostAndDeviceAreAddedInTheOrderOfTheCalls) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "fp32", 3);
  for (uint32_t unit = 0; unit < kUnits; ++unit) training.Use(unit, PENSTOCK_FORWARD);
  std::list<DeviceBytes> gradients;
  const float parts[] = {1e8F, 1.0F, -1e8F};  // (1e8 + 1) - 1e8 is 0 in fp32, another order gives 1
  for (int batch = 0; batch < 3; ++batch) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const uint32_t tensor : {0U, 1U}) {
        Values values(PENSTOCK_FLOAT32, kElements[tensor]);
        for (uint64_t i = 0; i < kElements[tensor]; ++i) values.Set(i, parts[batch]);
        if (batch == 1) {
          ASSERT_EQ(penstock_gradient(training.handle(), unit, tensor, values.bytes.data(),
                                      PENSTOCK_FLOAT32),
                    PENSTOCK_OK);
          continue;
        }
        const DeviceBytes& gradient = gradients.emplace_back(values.bytes.size());
        std::memcpy(gradient.bytes(), values.bytes.data(), values.bytes.size());
        ASSERT_EQ(training.TryGradient(unit, tensor, gradient), PENSTOCK_OK) << penstock_error();
      }
    }
  }
  double norm = -1;
  int finite = 0;
  ASSERT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK) << penstock_error();
  EXPECT_EQ(norm, 0);
}

TEST_F(CCuda, AMissingGradientIsZerosOnTheDeviceToo) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16");
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      ASSERT_EQ(penstock_gradient_on(training.handle(), unit, tensor, nullptr, PENSTOCK_FLOAT32,
                                     training.copies().get()),
                PENSTOCK_OK);
    }
  }
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  EXPECT_EQ(outcome.grad_norm, 0);
}

/// The stand-in for the driver is not one that CUDA's own runtime, or a build without it, works
/// with.
TEST_F(CCuda, StatesCannotBeAtHomeOnADeviceThatKernelsCannotUse) {
  const TempFolder folder;
  const CEngine engine(ConfigOf(kHomes[0], folder.Path()), ModelOf("bf16"),
                       {{"folders", {folder.Path()}}, {"cuda", true}});
  EXPECT_EQ(engine.code, PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(engine.error, HasSubstr("optimizer states cannot be at home on the device: "));
  EXPECT_THAT(engine.error, HasSubstr("; have them in host memory or on nvme (offload_optimizer)"));
}

TEST_F(CCuda, AChildOfAForkIsRefused) {
  const TempFolder folder;
  CudaTraining training(kHomes[3], folder.Path(), "bf16");
  training.Step();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int code = training.TryUse(0, PENSTOCK_FORWARD);
    penstock_close(training.handle());
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), PENSTOCK_UNAVAILABLE);
  training.Step();
}

}  // namespace
}  // namespace penstock::front
