// What the engines ask of a GPU in a step, counted on the emulated one: kernels, waits of the
// compute stream, copies to the host and registered memory. The bits are those of the CPU device.
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulated_cuda/cudart.h"
#include "tests/zero/engine_support.h"

namespace penstock::zero {
namespace {

using emulated_cuda::Counts;
using emulated_cuda::CountsSoFar;

/// Eight batches of 256 KiB a layer.
constexpr uint64_t kManyElements = 1'000'000;
/// 50 tiles of a block a layer.
constexpr uint64_t kManyTiles = 50 * kBlockElements - 100;
/// "in", the layers, and "out".
constexpr uint64_t kModules = kLayers + 2;

class EmulatedEngineTest : public EngineTest {
 protected:
  struct Run {
    std::unique_ptr<ToyRun> toy;
    cudaStream_t compute = nullptr;
  };

  static EngineOptions With(EngineOptions options, uint64_t layer_elements) {
    options.model = ToySpec(kLayers, layer_elements);
    options.host_memory = 512_MiB;
    return options;
  }

  static Run OnGpu(const EngineOptions& options, Bytes device_memory = 512_MiB) {
    Run run;
    run.toy = std::make_unique<ToyRun>(
        options, device_memory, [&](const std::unique_ptr<device::Device>&) {
          return device::CreateCudaDevice({.memory = device_memory}).value();
        });
    EXPECT_TRUE(run.toy->created().ok()) << run.toy->created().error().message;
    run.toy->launch = [](device::Stream& stream, const std::function<void()>& kernel) {
      static_cast<device::CudaStream&>(stream).Launch([&](CUstream_st* handle) -> Status {
        emulated_cuda::Enqueue(handle, kernel);
        return {};
      });
    };
    EXPECT_TRUE(run.toy->session().Initialize(ToyWeights).ok());
    static_cast<device::CudaStream&>(run.toy->session().compute_stream())
        .Launch([&](CUstream_st* handle) -> Status {
          run.compute = handle;
          return {};
        });
    return run;
  }

  /// What a step adds, once steps are alike.
  static Counts OfAStep(Run& run) {
    EXPECT_TRUE(run.toy->Step(1, 1.0F).ok());
    EXPECT_TRUE(run.toy->session().Drain().ok());
    const Counts before = CountsSoFar();
    EXPECT_TRUE(run.toy->Step(2, 0.5F).ok());
    EXPECT_TRUE(run.toy->session().Drain().ok());
    Counts after = CountsSoFar();
    for (auto& [what, count] : after.launches) {
      if (const auto found = before.launches.find(what); found != before.launches.end()) {
        count -= found->second;
      }
    }
    for (auto& [stream, count] : after.waits) {
      if (const auto found = before.waits.find(stream); found != before.waits.end()) {
        count -= found->second;
      }
    }
    after.copies_to_host -= before.copies_to_host;
    return after;
  }

  /// The masters after three steps; ends the run.
  static std::vector<float> Train(std::unique_ptr<ToyRun> run) {
    for (uint64_t step = 1; step <= 3; ++step) EXPECT_TRUE(run->Step(step, 1.0F).ok());
    Commit(*run, 3, 3);
    const std::vector<std::string> paths = run->session().state_paths();
    run.reset();
    return CommittedValues(paths, StateKind::kMaster);
  }
};

TEST_F(EmulatedEngineTest, TheComputeStreamWaitsAtMostOnceALayerForCopiesOfGradients) {
  const Placement placement{.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost};
  Run run = OnGpu(With(Options(placement), kManyElements));
  const uint64_t uses = 2 * kModules - 1;  // each may wait for its weights
  EXPECT_LE(OfAStep(run).waits[run.compute], uses + kModules);
}

TEST_F(EmulatedEngineTest, PassesOverStatesOnTheDeviceAreLaunchedByModuleAndNotByTile) {
  for (const bool lamb : {false, true}) {
    Placement placement{.name = "device",
                        .parameters = Tier::kDevice,
                        .optimizer = Tier::kDevice,
                        .tile_elements = kBlockElements};
    if (lamb) placement.rule = {.hyper = kernels::LambHyperparameters{.weight_decay = 0.1}};
    Run run = OnGpu(With(Options(placement), kManyTiles));
    ASSERT_GT(run.toy->session().layout().tiles.size(), 50 * kLayers);
    Counts counts = OfAStep(run);
    EXPECT_EQ(counts.launches["block sums"], kModules);
    EXPECT_EQ(counts.launches["the rounding of gradients"], kModules);
    EXPECT_EQ(counts.launches["the finite flag"], 0U);
    // A layer has two groups: weights and biases.
    EXPECT_EQ(counts.launches["an update"], kModules + kLayers);
    EXPECT_EQ(counts.launches["sums for trust ratios"], lamb ? kModules + kLayers : 0U);
    EXPECT_LE(counts.copies_to_host, (lamb ? 3 : 2) * kModules + 2) << "and losses and zeros";
    run.toy.reset();
  }
}

TEST_F(EmulatedEngineTest, ACommitLooksAtWeightsByModuleToo) {
  Run run = OnGpu(With(Options({.name = "device",
                                .parameters = Tier::kDevice,
                                .optimizer = Tier::kDevice,
                                .tile_elements = kBlockElements}),
                       kManyTiles));
  ASSERT_TRUE(run.toy->Step(1, 1.0F).ok());
  Counts before = CountsSoFar();
  Commit(*run.toy, 1, 1);
  Counts after = CountsSoFar();
  // Weights of two groups lie together.
  EXPECT_EQ(after.launches["the finite flag"] - before.launches["the finite flag"], kModules);
}

TEST_F(EmulatedEngineTest, EveryPlacementTrainsToTheBitsOfTheCpuDevice) {
  for (const bool lamb : {false, true}) {
    std::vector<float> want;
    for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      Placement placement{.name = "placed", .parameters = home, .optimizer = home};
      if (lamb) placement.rule = {.hyper = kernels::LambHyperparameters{.weight_decay = 0.1}};
      const EngineOptions options = With(Options(placement), 100'000);
      if (want.empty()) {
        auto cpu = std::make_unique<ToyRun>(options, 64_MiB);
        ASSERT_TRUE(cpu->session().Initialize(ToyWeights).ok());
        want = Train(std::move(cpu));
        ASSERT_FALSE(want.empty());
      }
      for (const bool smallest : {false, true}) {
        const Bytes memory =
            smallest ? Engine::MinimumMemory(options.model, options.config).device_minimum
                     : 512_MiB;
        EXPECT_EQ(Train(std::move(OnGpu(options, memory).toy)), want)
            << ToString(home) << " " << smallest;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::zero
