// Updates that begin with their own gradient, where nothing needs the gradients of the whole step.
#include "tests/deadline.h"
#include "tests/search_share.h"
#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

TEST_F(EngineTest, UpdatesThatBeginWithTheirGradientsGiveTheSameBits) {
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Outcome reference = TrainAndRead({.name = "device",
                                            .dtype = dtype,
                                            .parameters = Tier::kDevice,
                                            .optimizer = Tier::kDevice,
                                            .with_gradients = true});
    const Placement placements[] = {
        {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
        {.name = "optimizer host", .parameters = Tier::kDevice, .optimizer = Tier::kHost},
        {.name = "parameters host, optimizer nvme", .parameters = Tier::kHost},
        {.name = "parameters nvme, optimizer host", .optimizer = Tier::kHost},
        {.name = "all nvme, smallest"},
        {.name = "all nvme, serial", .overlap = false},
        {.name = "all nvme, roomy", .smallest_host = false, .smallest_device = false},
        {.name = "all nvme, two threads", .optimizer_threads = 2, .smallest_host = false},
        {.name = "all nvme, three threads, smallest", .optimizer_threads = 3},
        {.name = "all nvme, depth 1", .queue_depth = 1},
        {.name = "all nvme, tiny tiles", .tile_elements = 4096},
        {.name = "all nvme, large tiles", .tile_elements = 1 << 20},
        {.name = "one slot on the drive", .durable = false},
        {.name = "two drives, roomy", .smallest_host = false, .drives = {5, 1}},
    };
    for (Placement placement : placements) {
      if (tried++ % kTrainingStride != 0) continue;
      placement.dtype = dtype;
      placement.with_gradients = true;
      ExpectSameBits(TrainAndRead(placement), reference, placement.name);
      ExpectSameBits(TrainAndRead(placement, 2), reference,
                     placement.name + ", a commit in the middle");
    }
  }
}

TEST_F(EngineTest, ATileIsUpdatedBeforeTheStepEndsUnlessTheUpdateNeedsAllGradients) {
  for (const bool with_gradients : {true, false}) {
    for (const Tier home : {Tier::kHost, Tier::kNvme}) {
      const EngineOptions options = Options({.name = "x",
                                             .parameters = home,
                                             .optimizer = home,
                                             .with_gradients = with_gradients,
                                             .smallest_host = false});
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok());
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      uint64_t before_the_end = 0;
      run.before_update = [&] {
        ASSERT_TRUE(run.session().compute_stream().Synchronize().ok());
        // They come without anybody asking.
        if (with_gradients) {
          ASSERT_TRUE(BecomesTrue([&] { return run.session().counters().updates > 0; }));
        }
        before_the_end = run.session().counters().updates;
      };
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      EXPECT_EQ(before_the_end > 0, with_gradients);
      EXPECT_TRUE(run.session().Drain().ok());
    }
  }
}

TEST_F(EngineTest, TheCommitBeforeAGradientThatIsNotFiniteStands) {
  const Placement placement{.name = "nvme", .with_gradients = true};
  Outcome committed;
  {
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok());
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    Commit(run, 1, 1);
    const auto failed = run.Step(2, std::numeric_limits<float>::infinity());
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().error().code, ErrorCode::kNumeric);
    state_paths_ = run.session().state_paths();
  }
  ReadStates(&committed);
  {
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok());
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    Commit(run, 1, 1);
    state_paths_ = run.session().state_paths();
  }
  Outcome expected;
  ReadStates(&expected);
  ExpectSameBits(committed, expected, "after the failure");
}

}  // namespace
}  // namespace penstock::zero
