// Steps of training whose states live on the device, by one rank and by several.
#include "sim/resident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/sim/layers.h"
#include "zero/plan/partitioner.h"

namespace penstock::sim {
namespace {

using ::testing::DoubleNear;

constexpr uint64_t kOfLayers = 12;
constexpr uint64_t kResidentElements = 1 << 20;  // of a layer
constexpr Seconds kOfForward = 0.01;             // of a layer; backward takes twice as long
constexpr Seconds kComputed = 3 * kOfLayers * kOfForward;

class ResidentStepTest : public ::testing::Test {
 protected:
  offload::ShardLayout LayoutOf(uint32_t ranks) const {
    return zero::MakeLayout(model_, DType::kBFloat16, kResidentElements / 8, {}, {.size = ranks});
  }
  Seconds Step(uint32_t ranks, Seconds update, const LinkSpeed& link,
               const zero::ExchangeOptions& exchange = {.repeated_buffers = 2},
               uint64_t micro_batches = 1) const {
    const offload::ShardLayout layout = LayoutOf(ranks);
    std::vector<Seconds> compute(2 * kOfLayers, kOfForward);
    std::fill(compute.begin() + kOfLayers, compute.end(), 2 * kOfForward);
    return ResidentStep({.model = model_,
                         .layout = layout,
                         .compute = compute,
                         .update = update,
                         .micro_batches = micro_batches,
                         .exchange = exchange},
                        link);
  }
  /// A link that needs so long for a layer's gather, and so twice that for its exchange in fp32.
  LinkSpeed Gathers(Seconds gather) const {
    const LinkParts parts = GatherParts(LayoutOf(4), zero::ModuleId{0});
    return {.bytes_a_second = static_cast<double>(SentBytes(parts, 4).value) / gather};
  }

  const zero::ModelSpec model_ = EqualLayers(kOfLayers, kResidentElements);
};

TEST_F(ResidentStepTest, OneRankComputesAndUpdatesWithoutWaiting) {
  EXPECT_THAT(Step(1, 0.05, {.bytes_a_second = 1}), DoubleNear(kComputed + 0.05, 1e-9));
  EXPECT_THAT(Step(4, 0.05, {}), DoubleNear(kComputed + 0.05, 1e-9)) << "a link without a speed";
}

TEST_F(ResidentStepTest, OnlyTheFirstGatherAndTheLastExchangeShowWhereTheLinkIsFastEnough) {
  const Seconds gather = 0.9 * kOfForward;
  EXPECT_THAT(Step(4, 0, Gathers(gather)), DoubleNear(kComputed + 3 * gather, 1e-9));
}

TEST_F(ResidentStepTest, GathersRunUnderTheUpdatesOfLaterModules) {
  const Seconds gather = 0.5 * kOfForward;
  const Seconds update = kOfLayers * 2 * gather;
  EXPECT_THAT(Step(4, update, Gathers(gather)), DoubleNear(kComputed + update + 2 * gather, 1e-9));
}

TEST_F(ResidentStepTest, WithoutOverlapGathersBeginAfterAllUpdates) {
  const offload::ShardLayout layout = LayoutOf(4);
  const Seconds gather = 2 * kOfForward;
  const auto step = [&](bool overlap) {
    return ResidentStep({.model = model_,
                         .layout = layout,
                         .compute = std::vector<Seconds>(2 * kOfLayers),
                         .update = kOfLayers * gather,
                         .overlap = overlap,
                         .exchange = {.repeated_buffers = 2}},
                        Gathers(gather));
  };
  // The exchanges come after the last gather.
  const Seconds exchanges = kOfLayers * 2 * gather;
  EXPECT_THAT(step(true), DoubleNear((kOfLayers + 1) * gather + exchanges, 1e-9));
  EXPECT_THAT(step(false), DoubleNear(2 * kOfLayers * gather + exchanges, 1e-9));
}

TEST_F(ResidentStepTest, ALinkThatIsMuchSlowerIsTheStep) {
  const Seconds gather = 100 * kOfForward;
  const Seconds link = kOfLayers * gather;
  const zero::ExchangeOptions bf16 = {.repeated_buffers = 2, .dtype = DType::kBFloat16};
  const zero::ExchangeOptions once = {.repeated_buffers = 2, .order = config::GradientOrder::kRank};
  // Until the last gather is there, forward of the last layer and its backward wait.
  const Seconds shown = 3 * kOfForward;
  EXPECT_THAT(Step(4, 0, Gathers(gather)), DoubleNear(3 * link + shown, 1e-9));
  EXPECT_THAT(Step(4, 0, Gathers(gather), bf16), DoubleNear(2 * link + shown, 1e-9));
  EXPECT_THAT(Step(4, 0, Gathers(gather), {.repeated_buffers = 2}, 3),
              DoubleNear(7 * link + shown - 2 * 2 * kOfForward / 3, 1e-9));
  EXPECT_THAT(Step(4, 0, Gathers(gather), once, 3), DoubleNear(3 * link + shown, 1e-9));
}

TEST_F(ResidentStepTest, WithOneGradientBufferComputeWaitsForEachExchange) {
  const Seconds gather = 0.5 * kOfForward;
  EXPECT_THAT(Step(4, 0, Gathers(gather), {.repeated_buffers = 1}),
              DoubleNear(kComputed + gather + kOfLayers * 2 * gather, 1e-9));
}

}  // namespace
}  // namespace penstock::sim
