// The host half without a device: the same bits as with one.
#include "zero/engine/state_engine.h"

#include <cstring>
#include <latch>

#include "tests/zero/engine_support.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/step_decision.h"

namespace penstock::zero {
namespace {

using offload::TileId;

/// Counts a latch down when the thread that made it ends.
struct AtEndOfThread {
  std::latch& ended;
  ~AtEndOfThread() { ended.count_down(); }
};

class StateEngineTest : public EngineTest {
 protected:
  /// The toy's gradient of a tile, from its weight in host memory.
  static void WriteGradient(const offload::ShardLayout& layout, TileId tile,
                            std::span<const std::byte> weight, std::span<std::byte> gradient) {
    const offload::TileLayout& place = layout.tile(tile);
    std::memset(gradient.data(), 0, gradient.size());
    for (const offload::TensorLayout& tensor : layout.module(place.module).tensors) {
      for (uint64_t i = 0; i < place.elements; ++i) {
        const uint64_t at = place.begin + i;
        if (at < tensor.offset || at >= tensor.offset + tensor.elements) continue;
        const float value = ToyRun::WeightAt(weight.data(), Encoding::kBFloat16, i);
        const kernels::BFloat16 rounded =
            kernels::RoundToBFloat16(value * 0.3F + 0.01F * static_cast<float>(at % 5));
        std::memcpy(gradient.data() + 2 * i, &rounded.bits, sizeof rounded.bits);
      }
    }
  }

  /// Uses every tile in the order of the schedule, as a device would.
  static void ComputeGradients(StateEngine& engine, uint64_t step) {
    const offload::ShardLayout& layout = engine.layout();
    const offload::Schedule& schedule = engine.schedule();
    for (uint64_t use = 0; use < schedule.length(); ++use) {
      if (!schedule.uses[use].fetch) continue;
      engine.store().SetTime(step * schedule.length() + use);
      const offload::IdRange<TileId> tiles = layout.TilesOf(schedule.uses[use].module);
      for (size_t i = 0; i < tiles.size(); ++i) {
        const TileId tile = tiles[i];
        const auto weights = engine.store().PinWeights(tiles.Part(i, 1), 0_B);
        ASSERT_TRUE(weights.ok()) << weights.error().message;
        // The first use alone, as weights stay the same within a step.
        if (use == schedule.first_use[offload::Index(schedule.uses[use].module)]) {
          WriteGradient(layout, tile, weights->weights().front(), engine.Gradient(tile));
        }
      }
    }
    engine.store().SetTime((step + 1) * schedule.length());
  }
};

TEST_F(StateEngineTest, WithoutADeviceItUpdatesAndCommitsTheBitsOfATrainingWithOne) {
  for (const bool with_gradients : {false, true}) {
    for (const Tier home : {Tier::kHost, Tier::kNvme}) {
      const Placement placement{.name = "x",
                                .parameters = home,
                                .optimizer = home,
                                .optimizer_threads = 2,
                                .with_gradients = with_gradients,
                                .smallest_host = false};
      constexpr uint64_t kUpdates = 4;
      Outcome expected;
      {
        ToyRun run(Options(placement), 64_MiB);
        ASSERT_TRUE(run.created().ok()) << run.created().error().message;
        ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
        for (uint64_t t = 1; t <= kUpdates; ++t) {
          const auto done = run.Step(t, 1.0F);
          ASSERT_TRUE(done.ok()) << done.error().message;
          expected.norms.push_back(done->grad_norm);
        }
        Commit(run, kUpdates, kUpdates);
        state_paths_ = run.session().state_paths();
      }
      ReadStates(&expected);

      Outcome outcome;
      {
        const EngineOptions options = Options(placement);
        const offload::ShardLayout layout = MakeLayout(options.model, options.config);
        const auto plan =
            PlanMemory(options.model, layout, options.config, 64_MiB, options.host_memory);
        ASSERT_TRUE(plan.ok()) << plan.error().message;
        const auto engine = StateEngine::Create(options, layout, *plan, {});
        ASSERT_TRUE(engine.ok()) << engine.error().message;
        const TileFill fill = FillFromTensors(layout, ToyWeights, 0);
        ASSERT_TRUE((*engine)->FillTiles(fill).ok());
        for (uint64_t t = 1; t <= kUpdates; ++t) {
          ASSERT_TRUE((*engine)->BeginStep(1e-2, t).ok());
          ASSERT_NO_FATAL_FAILURE(ComputeGradients(**engine, t - 1));
          (*engine)->AllowUpdates();
          (*engine)->GradientsArrived(layout.Tiles());
          const auto gradient = (*engine)->FinishGradients();
          ASSERT_TRUE(gradient.ok());
          outcome.norms.push_back(gradient->norm);
          const auto decision = DecideStep({.gradient_clipping = options.config.gradient_clipping,
                                            .skips_overflow = options.config.check_grad_overflow},
                                           *gradient, 1, true);
          ASSERT_TRUE(decision.ok());
          ASSERT_TRUE((*engine)->UpdateStep(decision->grad_scale).ok());
        }
        (*engine)->BeginCommit({{.step = kUpdates}, "{}"}, [] { return Status(); });
        const Status committed = (*engine)->FinishCommit();
        ASSERT_TRUE(committed.ok()) << committed.error().message;
        state_paths_ = (*engine)->io().paths;
      }
      ReadStates(&outcome);
      ExpectSameBits(outcome, expected, std::string(ToString(home)));
    }
  }
}

/// Other ranks may have taken the commit back, and the updates would overwrite the one before.
TEST_F(StateEngineTest, NoUpdateBeginsAfterACommitForWhichTheVoteFailed) {
  EngineOptions options = Options({.name = "x",
                                   .parameters = Tier::kHost,
                                   .optimizer = Tier::kHost,
                                   .with_gradients = true,
                                   .smallest_host = false});
  std::latch ended(1);
  options.vote = [&](uint64_t step) -> Status {
    if (step == 0) return {};
    thread_local const AtEndOfThread at_end{ended};
    return MakeError(ErrorCode::kUnavailable, "another rank took its commit back");
  };
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  const auto plan = PlanMemory(options.model, layout, options.config, 64_MiB, options.host_memory);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const auto engine = StateEngine::Create(options, layout, *plan, {});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  ASSERT_TRUE((*engine)->FillTiles(FillFromTensors(layout, ToyWeights, 0)).ok());
  (*engine)->BeginCommit({{.step = 0}, "{}"}, [] { return Status(); });
  ASSERT_TRUE((*engine)->FinishCommit().ok());
  (*engine)->BeginCommit({{.step = 1}, "{}"}, [] { return Status(); });
  ended.wait();
  ASSERT_TRUE((*engine)->BeginStep(1e-2, 1).ok());
  ASSERT_NO_FATAL_FAILURE(ComputeGradients(**engine, 0));
  (*engine)->AllowUpdates();
  ASSERT_TRUE((*engine)->PrepareUpdates().ok());
  (*engine)->GradientsArrived(layout.Tiles());
  EXPECT_FALSE((*engine)->FinishCommit().ok());
  static_cast<void>((*engine)->WaitForBlocks());
  ASSERT_TRUE((*engine)->Drain().ok());
  EXPECT_EQ((*engine)->counters().updates, 0U);
}

}  // namespace
}  // namespace penstock::zero
