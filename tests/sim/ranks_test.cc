// Steps of several ranks in virtual time, and what they move over their links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/link.h"
#include "sim/step.h"
#include "tests/sim/layers.h"
#include "zero/plan/partitioner.h"

namespace penstock::sim {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::Le;

constexpr uint64_t kRankLayers = 12;
constexpr uint64_t kRankElements = 1 << 20;  // of a layer
constexpr Seconds kLayerForward = 0.01;      // of a layer; backward takes twice as long

/// Layers with their states in host memory, and a link.
class SimulatedRanksTest : public ::testing::Test {
 protected:
  static constexpr Seconds kCompute = 3 * kRankLayers * kLayerForward;

  offload::ShardLayout LayoutOf(uint32_t ranks) const {
    return zero::MakeLayout(model_, DType::kBFloat16, kRankElements / 8, {}, {.size = ranks});
  }
  /// The mean of several steps.
  Seconds Step(uint32_t ranks, uint32_t slots, const LinkSpeed& link, uint64_t micro_batches = 1,
               const zero::ExchangeOptions& exchange = {.repeated_buffers = 2}) const {
    const offload::ShardLayout layout = LayoutOf(ranks);
    const offload::Schedule schedule =
        zero::BuildSchedule(model_, layout, slots, zero::UpdateStart::kStepEnd);
    std::vector<Seconds> compute(2 * kRankLayers, kLayerForward);
    std::fill(compute.begin() + kRankLayers, compute.end(), 2 * kLayerForward);
    const std::vector<StepTime> steps =
        SimulateSteps({.layout = layout,
                       .schedule = schedule,
                       .gradients = model_.gradients,
                       .store = {.weight_home = Tier::kHost, .record_home = Tier::kHost},
                       .compute = compute,
                       .micro_batches = micro_batches,
                       .exchange = exchange},
                      {.compute_threads = 0, .link = link}, 4);
    return steps.back().step;
  }
  /// Of a link that needs so long for a layer's gather, and so twice that for its exchange.
  LinkSpeed Gathers(uint32_t ranks, Seconds gather) const {
    const LinkParts parts = GatherParts(LayoutOf(ranks), zero::ModuleId{0});
    return {.bytes_a_second = static_cast<double>(SentBytes(parts, ranks).value) / gather};
  }

  const zero::ModelSpec model_ = EqualLayers(kRankLayers, kRankElements);
};

TEST_F(SimulatedRanksTest, ARankSendsItsShareToEveryOtherAndGradientsInPieces) {
  const zero::ModuleId layer{0};
  EXPECT_EQ(SentBytes(GatherParts(LayoutOf(1), layer), 1), 0_B);
  EXPECT_EQ(SentBytes(ExchangeParts(LayoutOf(1), layer, DType::kFloat32), 1), 0_B);
  for (const uint32_t ranks : {2U, 4U, 8U}) {
    const Bytes others = Bytes{kRankElements / ranks * (ranks - 1)};
    EXPECT_EQ(SentBytes(GatherParts(LayoutOf(ranks), layer), ranks), others * 2);
    EXPECT_EQ(SentBytes(ExchangeParts(LayoutOf(ranks), layer, DType::kFloat32), ranks), others * 4);
  }
  zero::ModelSpec large;
  large.modules.push_back({.name = "large", .tensors = {{"weight", {5 << 20}}}});
  large.step = {{zero::ModuleId{0}, true}};
  large.gradients = {zero::ModuleId{0}};
  const offload::ShardLayout layout =
      zero::MakeLayout(large, DType::kBFloat16, kRankElements, {}, {.size = 2});
  EXPECT_THAT(ExchangeParts(layout, layer, DType::kFloat32),
              ::testing::ElementsAre(4_MiB, 4_MiB, 2_MiB));
  EXPECT_THAT(TimeOf({.bytes_a_second = 1e6, .latency = 0.5},
                     ExchangeParts(layout, layer, DType::kFloat32), 2),
              DoubleNear(1.5 + 10.0 * 1048576 / 1e6, 1e-6));
}

TEST_F(SimulatedRanksTest, ALinkThatTakesNoTimeLeavesAStepItsComputation) {
  for (const uint32_t slots : {1U, 2U, 12U}) {
    for (const uint64_t micro_batches : {1U, 3U}) {
      EXPECT_THAT(Step(4, slots, {}, micro_batches), DoubleNear(kCompute, 1e-9));
    }
  }
}

TEST_F(SimulatedRanksTest, OnlyTheFirstGatherAndTheLastExchangeShowWhereTheLinkIsFastEnough) {
  const Seconds gather = 0.9 * kLayerForward;
  const Seconds shown = gather + 2 * gather;
  EXPECT_THAT(Step(4, kRankLayers, Gathers(4, gather)), DoubleNear(kCompute + shown, 1e-6));
  // With two slots backward gathers, too: 0.6 of a forward for each gather leaves room for that.
  const Seconds less = 0.6 * kLayerForward;
  EXPECT_THAT(Step(4, 2, Gathers(4, less)), DoubleNear(kCompute + 3 * less, 1e-6));
}

TEST_F(SimulatedRanksTest, WithOneSlotNoGatherRunsUnderTheModuleBefore) {
  const Seconds gather = 0.5 * kLayerForward;
  // All but the one that backward finds in its slot; backward waits for exchanges as well.
  EXPECT_GE(Step(4, 1, Gathers(4, gather)), kCompute + (2 * kRankLayers - 1) * gather);
}

TEST_F(SimulatedRanksTest, WithOneGradientBufferComputeWaitsForEachExchange) {
  const Seconds gather = 0.5 * kLayerForward;
  EXPECT_GE(Step(4, kRankLayers, Gathers(4, gather), 1, {.repeated_buffers = 1}),
            kCompute + kRankLayers * 2 * gather);
}

TEST_F(SimulatedRanksTest, GradientsOfHalfTheSizeOrSentOnceTakeLessOfTheLink) {
  const offload::ShardLayout layout = LayoutOf(2);
  const zero::ModuleId layer{0};
  EXPECT_EQ(SentBytes(ExchangeParts(layout, layer, DType::kFloat32), 2),
            2 * SentBytes(ExchangeParts(layout, layer, DType::kBFloat16), 2));
  const Seconds gather = 8 * kLayerForward;
  const auto step = [&](const zero::ExchangeOptions& exchange) {
    return Step(2, kRankLayers, Gathers(2, gather), 3, exchange);
  };
  const Seconds slack = 4 * kLayerForward;
  const auto near = [&](Seconds link) { return AllOf(Ge(link), Le(link + slack)); };
  EXPECT_THAT(step({.repeated_buffers = 2}), near(kRankLayers * gather * 7));
  EXPECT_THAT(step({.repeated_buffers = 2, .dtype = DType::kBFloat16}),
              near(kRankLayers * gather * 4));
  EXPECT_THAT(step({.repeated_buffers = 2, .order = config::GradientOrder::kRank}),
              near(kRankLayers * gather * 3));
}

TEST_F(SimulatedRanksTest, ALinkThatIsMuchSlowerIsTheStepAndNeverIdle) {
  const Seconds gather = 8 * kLayerForward;
  for (const uint64_t micro_batches : {1U, 2U}) {
    const Seconds link = kRankLayers * gather * static_cast<double>(1 + 2 * micro_batches);
    EXPECT_THAT(Step(2, kRankLayers, Gathers(2, gather), micro_batches),
                AllOf(Ge(link), Le(link + 4 * kLayerForward)));
  }
}

}  // namespace
}  // namespace penstock::sim
