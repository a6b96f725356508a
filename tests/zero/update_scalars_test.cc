#include "zero/update_scalars.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock::zero {
namespace {

using offload::GroupId;
using offload::ModuleId;
using offload::TileLayout;

TEST(UpdateScalarsTest, RandomBitsDifferBetweenUpdatesModulesAndSeeds) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {0, 1}) {
    for (const uint64_t t : {1, 2}) {
      for (const uint32_t module : {0, 1}) {
        const TileLayout tile{.module = ModuleId{module}, .begin = 8192};
        const auto rounding = UpdateScalars({}, {}, seed, 1e-3, t, 1).RoundingOf(tile);
        EXPECT_EQ(rounding.first_element, 8192u);
        keys.insert(rounding.key);
      }
    }
  }
  EXPECT_EQ(keys.size(), 8u);
}

TEST(UpdateScalarsTest, OneGroupHasNoWeightDecay) {
  const config::OptimizerConfig optimizer{.hyper =
                                              kernels::AdamHyperparameters{.weight_decay = 0.5}};
  const UpdateScalars scalars(DecayGroupSpecs(), optimizer, 0, 1e-3, 1, 1);
  const auto decay = [&](GroupId group) {
    return std::get<kernels::AdamScalars>(scalars.Of(TileLayout{.group = group})).decay;
  };
  EXPECT_LT(decay(offload::kDecay), 0);
  EXPECT_EQ(decay(offload::kNoDecay), 0);
}

TEST(UpdateScalarsTest, BetasOfTheStepAreThoseOfEveryGroupThatHasAny) {
  std::vector<GroupSpec> groups = DecayGroupSpecs();
  groups.push_back({.hyper = kernels::LionHyperparameters{}});
  groups.push_back({.hyper = kernels::AdagradHyperparameters{}});
  const config::OptimizerConfig optimizer{.hyper = kernels::AdamHyperparameters{}};
  const Betas betas{.beta1 = 0.875, .beta2 = 0.75};
  const UpdateScalars cycled(groups, optimizer, 0, 1e-3, 3, 1, betas);
  const auto of = [&](uint32_t group) { return cycled.Of(TileLayout{.group = GroupId{group}}); };
  const auto adam = std::get<kernels::AdamScalars>(of(0));
  EXPECT_EQ(adam.beta1, 0.875f);
  EXPECT_EQ(adam.beta2, 0.75f);
  // The bias of a moment is corrected with the beta of the step, as in PyTorch.
  EXPECT_EQ(adam.negative_step_size, static_cast<float>(-1e-3 / (1 - 0.875 * 0.875 * 0.875)));
  EXPECT_EQ(std::get<kernels::LionScalars>(of(2)).beta1, 0.875f);
  EXPECT_EQ(std::get<kernels::LionScalars>(of(2)).beta2, 0.75f);
  const UpdateScalars plain(groups, optimizer, 0, 1e-3, 3, 1);
  EXPECT_EQ(std::get<kernels::AdagradScalars>(of(3)).negative_step_size,
            std::get<kernels::AdagradScalars>(plain.Of(TileLayout{.group = GroupId{3}}))
                .negative_step_size);
}

}  // namespace
}  // namespace penstock::zero
