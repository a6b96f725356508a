// Engines of several ranks, as threads of one process: the number of ranks changes no bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/search_share.h"
#include "tests/zero/engine/ranks_support.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

void ExpectSame(const Outcome& one, const Outcome& several, const std::string& name) {
  EXPECT_EQ(one.losses, several.losses) << name;
  EXPECT_EQ(one.norms, several.norms) << name;
  ASSERT_EQ(one.blocks.size(), several.blocks.size()) << name;
  for (const auto& [place, values] : one.blocks) {
    ASSERT_TRUE(several.blocks.contains(place)) << name;
    EXPECT_EQ(values, several.blocks.at(place))
        << name << ": module " << place.first << ", element " << place.second;
  }
}

TEST_F(RanksTest, AnyNumberOfRanksHasTheLossesNormsAndWeightsOfOneInEveryPlacement) {
  const Case cases[] = {
      {.name = "nvme"},
      {.name = "nvme, fp32", .dtype = DType::kFloat32},
      {.name = "nvme, room", .room = Room::kAll},
      {.name = "nvme, two slots", .room = Room::kTwoSlots},
      {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
      {.name = "states on nvme", .parameters = Tier::kDevice, .optimizer = Tier::kNvme},
      {.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
      {.name = "device, fp32",
       .dtype = DType::kFloat32,
       .parameters = Tier::kDevice,
       .optimizer = Tier::kDevice},
      {.name = "no overlap", .overlap = false},
      {.name = "small tiles", .tile_elements = 4096},
  };
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Outcome one = Train({.name = "one", .dtype = dtype}, 1);
    ASSERT_EQ(one.losses.size(), kSteps);
    for (const Case& c : cases) {
      if (c.dtype != dtype) continue;
      for (const uint32_t ranks : {2U, 3U, 4U, 8U}) {
        if (tried++ % kTrainingStride != 0) continue;
        ExpectSame(one, Train(c, ranks), fmt::format("{}, {} ranks", c.name, ranks));
      }
    }
  }
}

TEST_F(RanksTest, NormsOfTensorsThatRanksShareAreThoseOfOneRank) {
  for (const bool with_gradients : {false, true}) {
    Case nvme{.name = "nvme",
              .hyper = kernels::LambHyperparameters{.weight_decay = 0.1},
              .with_gradients = with_gradients};
    Case host = nvme;
    host.name = "host, small tiles";
    host.parameters = host.optimizer = Tier::kHost;
    host.tile_elements = 4096;
    Case device = nvme;
    device.name = "device";
    device.parameters = device.optimizer = Tier::kDevice;
    const Outcome one = Train(nvme, 1);
    ExpectSame(one, Train(device, 1), "device, one rank");
    for (const Case& c : {nvme, host, device}) {
      for (const uint32_t ranks : {2U, 4U}) {
        ExpectSame(one, Train(c, ranks), fmt::format("{}, {} ranks", c.name, ranks));
      }
    }
  }
}

TEST_F(RanksTest, StepsOfAnyNumberOfMicroBatchesHaveTheBitsOfOneRank) {
  const Case nvme{.name = "nvme", .micro_batches = {8, 16, 24, 8, 16}};
  Case device = nvme;
  device.parameters = device.optimizer = Tier::kDevice;
  const Outcome one = Train(nvme, 1);
  EXPECT_NE(one.losses[1], Train({.name = "more"}, 1).losses[1]);
  ExpectSame(one, Train(device, 1), "device, one rank");
  for (const uint32_t ranks : {2U, 8U}) {
    ExpectSame(one, Train(nvme, ranks), fmt::format("nvme, {} ranks", ranks));
    ExpectSame(one, Train(device, ranks), fmt::format("device, {} ranks", ranks));
  }
}

TEST_F(RanksTest, GradientsThatAreRoundedOnTheirWayHaveTheBitsOfOneRankThatRoundsThem) {
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Case nvme{.name = "nvme", .dtype = dtype, .communication = DType::kBFloat16};
    const Outcome one = Train(nvme, 1);
    EXPECT_NE(one.norms, Train({.name = "exact", .dtype = dtype}, 1).norms);
    Case device = nvme;
    device.name = "device";
    device.parameters = device.optimizer = Tier::kDevice;
    device.room = Room::kAll;
    ExpectSame(one, Train(device, 1), "device, one rank");
    for (const Case& c : {nvme, device}) {
      for (const uint32_t ranks : {2U, 3U, 4U, 8U}) {
        if (tried++ % kTrainingStride != 0) continue;
        ExpectSame(one, Train(c, ranks), fmt::format("{}, {} ranks", c.name, ranks));
      }
    }
  }
}

TEST_F(RanksTest, UpdatesThatBeginWithTheirGradientsHaveTheBitsOfOneRank) {
  const Case nvme{.name = "nvme", .with_gradients = true};
  const Outcome one = Train(nvme, 1);
  for (const uint32_t ranks : {2U, 3U, 8U}) ExpectSame(one, Train(nvme, ranks), "nvme");
  const Case two_slots{.name = "two slots", .with_gradients = true, .room = Room::kTwoSlots};
  ExpectSame(one, Train(two_slots, 3), "two slots");
  const Case device{.name = "device",
                    .parameters = Tier::kDevice,
                    .optimizer = Tier::kDevice,
                    .with_gradients = true};
  ExpectSame(one, Train(device, 4), "device");
}

TEST_F(RanksTest, FiguresByTensorAreThoseOfOneRankOnEachOfSeveral) {
  const auto figures_of = [this](Tier home, uint32_t ranks) {
    std::vector<StepFigures> seen(ranks);
    const auto outcomes = ForEachRank(
        {.name = "figures", .dtype = DType::kFloat16, .parameters = home, .optimizer = home}, ranks,
        [&](Rank& rank) -> Status {
          PENSTOCK_TRY(Compute(rank, 1, {}).status());
          const std::vector<kernels::ZeroCounts> zeros = rank.session->figures().zeros;
          PENSTOCK_TRY(Compute(rank, 2, {}).status());
          seen[rank.rank] = rank.session->figures();
          EXPECT_TRUE(seen[rank.rank].zeros.empty());
          seen[rank.rank].zeros = zeros;
          return {};
        });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return seen;
  };
  const auto expect_near = [](double found, double expected) {
    EXPECT_NEAR(found, expected, 1e-6 * expected) << "ranks decide in which order sums are added";
  };
  const StepFigures one = figures_of(Tier::kHost, 1).front();
  for (const Tier home : {Tier::kHost, Tier::kDevice}) {
    for (const uint32_t ranks : {1U, 2U, 3U}) {
      for (const StepFigures& of_rank : figures_of(home, ranks)) {
        ASSERT_EQ(of_rank.gradients.size(), one.gradients.size());
        ASSERT_EQ(of_rank.updates.size(), one.gradients.size());
        ASSERT_EQ(of_rank.zeros.size(), one.gradients.size());
        for (size_t i = 0; i < one.gradients.size(); ++i) {
          EXPECT_EQ(of_rank.gradients[i].largest, one.gradients[i].largest);
          EXPECT_EQ(of_rank.updates[i].largest, one.updates[i].largest);
          EXPECT_EQ(of_rank.zeros[i].exact, one.zeros[i].exact);
          EXPECT_EQ(of_rank.zeros[i].rounded, one.zeros[i].rounded);
          expect_near(of_rank.gradients[i].sum_of_squares, one.gradients[i].sum_of_squares);
          expect_near(of_rank.updates[i].sum_of_squares, one.updates[i].sum_of_squares);
          expect_near(of_rank.updates[i].update_sum_of_squares,
                      one.updates[i].update_sum_of_squares);
        }
      }
    }
  }
}

TEST_F(RanksTest, RanksThatHaveNothingTrainWithTheOthers) {
  for (const Tier home : {Tier::kNvme, Tier::kHost, Tier::kDevice}) {
    Case tiny{.name = "tiny", .parameters = home, .optimizer = home, .layer_elements = 100};
    const Outcome one = Train(tiny, 1);
    ExpectSame(one, Train(tiny, 8), ToString(home));
    tiny.hyper = kernels::LambHyperparameters{};
    ExpectSame(Train(tiny, 1), Train(tiny, 8), fmt::format("{}, two passes", ToString(home)));
  }
}

TEST_F(RanksTest, ALossThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  for (const bool with_gradients : {false, true}) {
    const Case c{.name = "nvme", .with_gradients = with_gradients};
    const auto outcomes = ForEachRank(c, 3, [](Rank& rank) -> Status {
      for (uint64_t step = 1; step <= 3; ++step) {
        Damage damage;
        if (step == 2) {
          damage.loss_of = [](uint64_t index, double loss) { return index == 7 ? kNaN : loss; };
        }
        PENSTOCK_ASSIGN(const Computed computed, Compute(rank, step, damage));
        EXPECT_EQ(computed.step.skipped, step == 2);
        EXPECT_EQ(std::isnan(computed.loss), step == 2);
      }
      return {};
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }
}

/// Rank 0's steps move nothing on its drive.
TEST_F(RanksTest, RanksVerifyTheirCommitsOnlyWhereThatCostsNoneOfThemTooMuch) {
  for (const bool first_keeps_all : {false, true}) {
    const Case c{.name = "x", .first_keeps_all = first_keeps_all, .commit_every_steps = 100};
    const auto outcomes = ForEachRank(c, 2, [&](Rank& rank) -> Status {
      PENSTOCK_TRY(Compute(rank, 1, {}).status());
      PENSTOCK_TRY(rank.session->Commit("{}"));
      EXPECT_EQ(rank.session->counters().nvme_verify_bytes == 0, first_keeps_all)
          << "rank " << rank.rank;
      const auto says = HasSubstr("steps move nothing on the drive");
      EXPECT_EQ(::testing::Matches(::testing::Contains(says))(rank.session->notices()),
                first_keeps_all);
      return {};
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    TearDown();
    SetUp();
  }
}

TEST_F(RanksTest, ARankThatFailsEndsTheOthers) {
  for (const Tier home : {Tier::kNvme, Tier::kDevice}) {
    const Case c{.name = "fails", .parameters = home, .optimizer = home};
    const auto outcomes = ForEachRank(c, 3, [](Rank& rank) -> Status {
      for (uint64_t step = 1; step <= 4; ++step) {
        if (rank.rank == 1 && step == 3) return MakeError(ErrorCode::kIo, "the drive has gone");
        PENSTOCK_TRY(Compute(rank, step, {}).status());
      }
      return {};
    });
    for (const Status& outcome : outcomes) {
      ASSERT_FALSE(outcome.ok());
      EXPECT_THAT(outcome.error().message, HasSubstr("the drive has gone"));
    }
  }
}

TEST_F(RanksTest, ALossOfARanksOwnDecidesNothing) {
  const auto outcomes = ForEachRank({.name = "own"}, 2, [](Rank& rank) -> Status {
    PENSTOCK_ASSIGN(Step step, rank.session->BeginStep());
    for (uint32_t i = 0; i < step.layout().model.modules.size(); ++i) {
      PENSTOCK_ASSIGN(const Use use, step.Acquire(ModuleId{i}));
      PENSTOCK_TRY(step.Gradients(ModuleId{i}).status());
      PENSTOCK_TRY(step.ReduceGradients(ModuleId{i}));
    }
    step.ReportLoss(1);
    return step.Finish().status();
  });
  for (const Status& outcome : outcomes) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_THAT(outcome.error().message, HasSubstr("ReportLosses"));
  }
}

}  // namespace
}  // namespace penstock::zero
