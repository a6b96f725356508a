// The engine with groups that no configuration makes yet: weights of several dtypes, frozen ones,
// scalars of their own.
#include <cstring>
#include <vector>

#include "offload/state_reader.h"
#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"
#include "zero/states/tile_planes.h"
#include "zero/update_scalars.h"

namespace penstock::zero {
namespace {

using offload::GroupId;

constexpr GroupId kHalf{1};
constexpr GroupId kWhole{2};
constexpr GroupId kFrozen{3};

/// bf16, fp16 and fp32 weights, each with a learning rate and hyperparameters of its own, and
/// frozen ones.
std::vector<GroupSpec> Groups() {
  return {{.name = "bf16"},
          {.name = "fp16",
           .weight = DType::kFloat16,
           .hyper = kernels::AdamHyperparameters{.beta1 = 0.5, .weight_decay = 0.3},
           .lr_factor = 0.25},
          {.name = "fp32",
           .weight_decay = false,
           .weight = DType::kFloat32,
           .hyper = kernels::AdamHyperparameters{.beta2 = 0.9, .eps = 1e-3},
           .lr_factor = 2},
          {.name = "frozen", .frozen = true, .weight = DType::kFloat16}};
}

/// The toy model with tensors of every group in its layers, and one layer that is frozen whole.
ModelSpec MixedSpec() {
  ModelSpec model = ToySpec(kLayers, kLayerElements);
  model.groups = Groups();
  for (ModuleSpec& module : model.modules) {
    if (!module.repeated) continue;
    module.tensors[0].group = kWhole;
    module.tensors.push_back({module.name + ".half", {13, 700}, kHalf});
    module.tensors.push_back({module.name + ".base", {10000}, kFrozen});
  }
  for (TensorSpec& tensor : model.modules[2].tensors) tensor.group = kFrozen;
  model.modules.back().tensors[0].group = kWhole;
  return model;
}

class EngineGroupsTest : public EngineTest {
 protected:
  Outcome TrainMixed(const Placement& placement) {
    EngineOptions options = Options(placement);
    options.model = MixedSpec();
    if (placement.smallest_host) {
      options.host_memory =
          Engine::MinimumMemory(options.model, options.config).host_minimum + placement.more_host;
    }
    Outcome outcome;
    Run(options, placement, outcome);
    ReadStates(&outcome);
    return outcome;
  }

 private:
  void Run(const EngineOptions& options, const Placement& placement, Outcome& outcome) {
    ToyRun run(options, DeviceMemory(placement, options));
    ASSERT_TRUE(run.created().ok()) << placement.name << ": " << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    for (uint64_t step = 1; step <= 4; ++step) {
      const auto result = run.Step(step, 1.0F / static_cast<float>(step));
      ASSERT_TRUE(result.ok()) << placement.name << ": " << result.error().message;
      outcome.norms.push_back(result->grad_norm);
      if (step == 2) Commit(run, step, step);
    }
    EXPECT_TRUE(run.session().Drain().ok());
    Commit(run, 4, 4);
    EXPECT_LE(run.session().host_peak(), options.host_memory);
    state_paths_ = run.session().state_paths();
  }
};

TEST_F(EngineGroupsTest, MixedAndFrozenGroupsGiveTheSameBitsInEveryPlacement) {
  const Outcome reference =
      TrainMixed({.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice});
  const Placement placements[] = {
      {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
      {.name = "optimizer nvme", .parameters = Tier::kDevice},
      {.name = "all nvme, smallest"},
      {.name = "all nvme, roomy, two threads", .optimizer_threads = 2, .smallest_host = false},
      {.name = "all nvme, tiny tiles", .tile_elements = 4096},
      {.name = "all nvme, serial", .overlap = false},
      {.name = "half at home", .tier_split = true, .more_host = 256_KiB},
      {.name = "two drives", .drives = {1, 3}},
  };
  for (const Placement& placement : placements) {
    ExpectSameBits(TrainMixed(placement), reference, placement.name);
  }
}

TEST_F(EngineGroupsTest, WithUpdatesByGradientTheBitsAreTheSameToo) {
  const Outcome reference = TrainMixed({.name = "device",
                                        .parameters = Tier::kDevice,
                                        .optimizer = Tier::kDevice,
                                        .with_gradients = true});
  ExpectSameBits(TrainMixed({.name = "all nvme", .with_gradients = true}), reference, "all nvme");
}

TEST_F(EngineGroupsTest, AFrozenWeightIsWhatItWasFilledWithAndNoOtherIs) {
  TrainMixed({.name = "all nvme"});
  const auto state = CommittedState::Open(state_paths_);
  ASSERT_TRUE(state.ok()) << state.error().message;
  const offload::ModelLayout& model = (*state)->model();
  uint64_t frozen = 0;
  for (const ModuleId module : offload::Ids<ModuleId>(model.modules.size())) {
    const auto& tensors = model.module(module).tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<float> values(tensors[i].elements);
      ASSERT_TRUE((*state)->ReadState(StateKind::kMaster, module, i, 0, values).ok());
      std::vector<float> first(values.size());
      ASSERT_TRUE(ToyWeights(module, i, 0, first).ok());
      const bool is_frozen = model.group(tensors[i].group).frozen;
      for (size_t j = 0; j < values.size(); ++j) {
        const float rounded = kernels::Float16ToFloat(kernels::RoundToFloat16(first[j]));
        if (is_frozen) {
          ASSERT_EQ(values[j], rounded) << tensors[i].name;
        }
      }
      if (!is_frozen) {
        EXPECT_NE(values, first) << tensors[i].name;
      }
      frozen += is_frozen ? 1 : 0;
    }
  }
  EXPECT_EQ(frozen, kLayers + 3);
}

TEST_F(EngineGroupsTest, AnFp16WeightIsItsMasterRounded) {
  TrainMixed({.name = "all nvme"});
  const auto state = offload::StateReader::Open(state_paths_).value();
  const offload::ShardLayout& layout = state->layout();
  uint64_t rounded = 0;
  for (const offload::TileId tile : layout.Tiles()) {
    const offload::TileLayout& place = layout.tile(tile);
    if (place.group != kHalf) continue;
    offload::StateReader::TileBytes bytes;
    ASSERT_TRUE(state->ReadTile(tile, bytes).ok());
    std::vector<float> masters(place.elements);
    LoadState(StateKind::kMaster, layout, tile, bytes.weight.data(), bytes.record.data(), 0,
              masters);
    const auto* const weights = reinterpret_cast<const kernels::Float16*>(bytes.weight.data());
    for (size_t i = 0; i < masters.size(); ++i) {
      ASSERT_EQ(weights[i].bits, kernels::RoundToFloat16(masters[i])) << i;
      rounded += kernels::ToFloat(weights[i]) == masters[i] ? 0 : 1;
    }
  }
  EXPECT_GT(rounded, 10000) << "masters hold more than their weights";
}

TEST(GroupScalarsTest, EachGroupIsUpdatedByScalarsOfItsOwn) {
  const config::OptimizerConfig optimizer{.hyper =
                                              kernels::AdamHyperparameters{.weight_decay = 0.1}};
  const UpdateScalars scalars(Groups(), optimizer, 0, 1e-3, 3, 0.5);
  const auto of = [&](uint32_t group) {
    return std::get<kernels::AdamScalars>(scalars.Of(offload::TileLayout{.group = GroupId{group}}));
  };
  const auto expect = [](const kernels::AdamScalars& found,
                         const kernels::AdamHyperparameters& hyper, double lr) {
    const kernels::AdamScalars expected = kernels::MakeAdamScalars(hyper, lr, 3, 0.5);
    EXPECT_EQ(found.beta1, expected.beta1);
    EXPECT_EQ(found.beta2, expected.beta2);
    EXPECT_EQ(found.eps, expected.eps);
    EXPECT_EQ(found.decay, expected.decay);
    EXPECT_EQ(found.negative_step_size, expected.negative_step_size);
    EXPECT_EQ(found.grad_scale, expected.grad_scale);
  };
  expect(of(0), {.weight_decay = 0.1}, 1e-3);
  expect(of(1), {.beta1 = 0.5, .weight_decay = 0.3}, 2.5e-4);
  expect(of(2), {.beta2 = 0.9, .eps = 1e-3}, 2e-3);
}

}  // namespace
}  // namespace penstock::zero
