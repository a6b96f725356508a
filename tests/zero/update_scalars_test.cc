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

}  // namespace
}  // namespace penstock::zero
