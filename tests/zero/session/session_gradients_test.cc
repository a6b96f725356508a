// Gradients and streams that the caller brings.
#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "tests/zero/engine_support.h"
#include "tests/zero/gate.h"
#include "zero/session/session.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

class GradientsTest : public EngineTest {
 protected:
  /// The toy's gradient of a module, from its weights on the (CPU) device.
  static std::vector<float> GradientOf(ToyRun& run, const Use& use) {
    const offload::ShardLayout& layout = run.session().layout();
    std::vector<float> sums(layout.module(use.module()).elements);
    for (const offload::TensorLayout& tensor : layout.module(use.module()).tensors) {
      const std::byte* const values =
          use.weights() + layout.SlotOffset(use.module(), tensor.offset).value;
      for (uint64_t i = 0; i < tensor.elements; ++i) {
        const float weight =
            ToyRun::WeightAt(values, layout.model.group(tensor.group).planes.weight().encoding, i);
        const uint64_t at = tensor.offset + i;
        sums[at] = weight * 0.3F + 0.01F * static_cast<float>(at % 5);
      }
    }
    return sums;
  }

  static void Write(const HostGradient& gradient, const offload::ShardLayout& layout,
                    const std::vector<float>& sums) {
    const offload::TileLayout& tile = layout.tile(gradient.tile);
    for (uint64_t i = 0; i < tile.elements; ++i) {
      const float value = tile.begin + i < sums.size() ? sums[tile.begin + i] : 0;
      if (layout.GradientDType(gradient.tile) == DType::kFloat32) {
        std::memcpy(gradient.values.data() + 4 * i, &value, sizeof value);
      } else {
        const kernels::BFloat16 rounded = kernels::RoundToBFloat16(value);
        std::memcpy(gradient.values.data() + 2 * i, &rounded.bits, sizeof rounded.bits);
      }
    }
  }

  /// A step whose gradients are computed by the caller and written in host memory.
  static Result<StepOutcome> StepWithHostGradients(ToyRun& run) {
    PENSTOCK_ASSIGN(zero::Step step, run.session().BeginStep());
    step.ReportLoss(1);
    for (const ModuleId module : offload::Ids<ModuleId>(kLayers + 2)) {
      PENSTOCK_ASSIGN(const zero::Use use, step.Acquire(module));
      PENSTOCK_TRY(step.compute_stream().Synchronize());
      const std::vector<float> sums = GradientOf(run, use);
      PENSTOCK_ASSIGN(const auto gradients, step.BeginHostGradients(module));
      for (const HostGradient& gradient : gradients) Write(gradient, step.layout(), sums);
      PENSTOCK_TRY(step.EndHostGradients(module));
    }
    return step.Finish();
  }

  void Commit(ToyRun& run) {
    ASSERT_TRUE(run.session().Commit("{}").ok());
    state_paths_ = run.session().state_paths();
  }
};

TEST_F(GradientsTest, GradientsInHostMemoryGiveTheBitsOfThoseOnTheDevice) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const bool with_gradients : {false, true}) {
      for (const Tier home : {Tier::kHost, Tier::kNvme}) {
        const Placement placement{.name = "x",
                                  .dtype = dtype,
                                  .parameters = home,
                                  .optimizer = home,
                                  .with_gradients = with_gradients};
        Outcome device;
        Outcome host;
        for (Outcome* outcome : {&device, &host}) {
          {
            ToyRun run(Options(placement), 64_MiB);
            ASSERT_TRUE(run.created().ok()) << run.created().error().message;
            ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
            for (uint64_t t = 1; t <= 4; ++t) {
              const auto done = outcome == &host ? StepWithHostGradients(run) : run.Step(t, 1.0F);
              ASSERT_TRUE(done.ok()) << done.error().message;
              outcome->norms.push_back(done->grad_norm);
            }
            Commit(run);
          }
          ReadStates(outcome);
        }
        ExpectSameBits(host, device, fmt::format("{} {}", ToString(dtype), ToString(home)));
      }
    }
  }
}

TEST_F(GradientsTest, AGradientThatAnUpdateStillReadsIsNotGivenOut) {
  Gate gate;
  EngineOptions options = Options(
      {.name = "states on a drive that waits", .parameters = Tier::kHost, .tile_elements = 4096});
  options.create_io = GatedBy<GatedReads>(gate);
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  gate.Close();
  ASSERT_TRUE(run.Step(1, 1.0F).ok());
  auto step = run.session().BeginStep();
  ASSERT_TRUE(step.ok());
  const ModuleId last{kLayers};
  const auto refused = step->BeginHostGradients(last);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message,
              HasSubstr("may still read the last one; acquire the module first"));
  gate.Open();
  // The weights are those after the update.
  ASSERT_TRUE(step->Acquire(last).ok());
  EXPECT_TRUE(step->BeginHostGradients(last).ok());
}

TEST_F(GradientsTest, WhereTheOptimizerIsOnTheDeviceGradientsInHostMemoryAreRefused) {
  ToyRun run(Options({.name = "x", .parameters = Tier::kDevice, .optimizer = Tier::kDevice}),
             64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  auto step = run.session().BeginStep();
  ASSERT_TRUE(step.ok());
  ASSERT_TRUE(step->Acquire(ModuleId{1}).ok());
  const auto refused = step->BeginHostGradients(ModuleId{1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("offload_optimizer"));
}

TEST_F(GradientsTest, AStreamOfTheCallersGivesTheSameBits) {
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    const Placement placement{.name = "x", .parameters = home, .optimizer = home};
    Outcome own;
    Outcome foreign;
    for (Outcome* outcome : {&own, &foreign}) {
      {
        ToyRun run(Options(placement), 64_MiB, {}, /*foreign_stream=*/outcome == &foreign);
        ASSERT_TRUE(run.created().ok()) << run.created().error().message;
        ASSERT_EQ(run.foreign_stream() == &run.session().compute_stream(), outcome == &foreign);
        ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
        for (uint64_t t = 1; t <= 4; ++t) {
          const auto done = run.Step(t, 1.0F);
          ASSERT_TRUE(done.ok()) << done.error().message;
          outcome->norms.push_back(done->grad_norm);
        }
        Commit(run);
      }
      ReadStates(outcome);
    }
    ExpectSameBits(foreign, own, std::string(ToString(home)));
  }
}

}  // namespace
}  // namespace penstock::zero
