// Commits beside training.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "offload/state_reader.h"
#include "tests/deadline.h"
#include "tests/zero/engine_support.h"
#include "tests/zero/gate.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Makes weights that are not finite of gradients that are: 0 / 0 where one is zero, as some are in
/// every module.
const Rule kZeroByZero{.hyper = kernels::AdamHyperparameters{.eps = 0}};

class CommitTest : public EngineTest {
 protected:
  EngineOptions GatedOptions(const Placement& placement) {
    EngineOptions options = Options(placement);
    options.create_io = GatedBy<GatedEngine>(gate_);
    return options;
  }

  static void TrainTwoStepsWithACommitAfterTheFirst(ToyRun& run) {
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    Commit(run, 1, 1);
    ASSERT_TRUE(run.Step(2, 1.0F).ok());
    ASSERT_TRUE(run.session().Drain().ok());
  }

  /// Begins a commit and waits until the thread that makes it has ended; training has not noticed.
  static void BeginAndEndCommit(ToyRun& run, uint64_t step, uint64_t updates) {
    const auto threads = [] {
      const std::filesystem::directory_iterator tasks("/proc/self/task");
      return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    BeginCommit(run, step, updates);
    ASSERT_TRUE(BecomesTrue([&] { return threads() <= before; }));
  }

  /// Of a state that an engine of this process has locked.
  static std::unique_ptr<offload::StateReader> ReadBeside(const std::vector<std::string>& paths) {
    return std::move(offload::StateReader::Open(paths, offload::StateLock::kHeld)).value();
  }

  /// Writes over every weight in the slots that the newest commit names, or in the others.
  static void DamageWeights(const std::vector<std::string>& paths, bool committed) {
    const auto state = ReadBeside(paths);
    FILE* file = std::fopen(paths[0].c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    for (size_t i = 0; i < state->commit().tiles.size(); ++i) {
      const int slot = static_cast<int>(state->commit().tiles[i].slot);
      const FileOffset at =
          offload::PartOffset(state->geometry(0), state->header().tiles[i], offload::Part::kWeight,
                              committed ? slot : 1 - slot);
      std::fseek(file, static_cast<long>(at.value), SEEK_SET);
      std::fputs("other bytes", file);
    }
    std::fclose(file);
  }

  Gate gate_;
};

TEST_F(CommitTest, TheNextStepComputesWhileTheDriveSynchronisesAndNoBitChanges) {
  for (const bool with_gradients : {false, true}) {
    const Outcome whole = TrainAndRead({.name = "whole", .with_gradients = with_gradients});
    for (const Tier parameters : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      for (const Tier optimizer : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
        if ((parameters == Tier::kDevice) != (optimizer == Tier::kDevice)) continue;
        const Placement placement{
            .name = fmt::format("{} {}", ToString(parameters), ToString(optimizer)),
            .parameters = parameters,
            .optimizer = optimizer,
            .with_gradients = with_gradients};
        {
          ToyRun run(GatedOptions(placement), 64_MiB);
          ASSERT_TRUE(run.created().ok()) << run.created().error().message;
          ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
          size_t beside = 0;
          uint64_t updated = 0;
          run.before_update = [&] {
            if (beside == 0) return;
            gate_.AwaitWaiting();
            EXPECT_EQ(run.session().counters().updates, updated) << "of what is being committed";
            gate_.Open();
          };
          uint64_t t = 1;
          for (uint64_t step = 1; step <= kSteps; ++step) {
            const auto result = TrainStep(run, step, t, !with_gradients);
            ASSERT_TRUE(result.ok()) << result.error().message;
            if (!result->skipped) ++t;
            if (step == kSteps) break;
            gate_.Close();
            BeginCommit(run, step, t - 1);
            updated = (t - 1) * run.session().layout().tiles.size();
            ++beside;
          }
          gate_.Open();
          Commit(run, kSteps, t - 1);
          EXPECT_EQ(beside, kSteps - 1);
          state_paths_ = run.session().state_paths();
        }
        Outcome outcome{.norms = whole.norms};
        ReadStates(&outcome);
        ExpectSameBits(outcome, whole, placement.name);
      }
    }
  }
}

/// Writes of tiles are submitted though none completes.
TEST_F(CommitTest, TilesOfTheDeviceAreWrittenBesideEachOtherAndBesideTheNextStep) {
  for (const bool smallest : {true, false}) {
    EngineOptions options = Options({.name = "device",
                                     .parameters = Tier::kDevice,
                                     .optimizer = Tier::kDevice,
                                     .smallest_host = smallest});
    std::atomic<size_t> submitted = 0;
    options.create_io = [&](size_t, const aio::EngineOptions& aio,
                            std::string* notice) -> Result<std::unique_ptr<aio::Engine>> {
      PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> engine, aio::CreateEngine(aio, notice));
      return std::unique_ptr<aio::Engine>(
          std::make_unique<GatedWrites>(std::move(engine), gate_, submitted));
    };
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    run.before_update = [&] {
      // Of a tile there are two. The first of four blocks or more waits for its own alone.
      const size_t want = smallest ? 2 : 6;
      EXPECT_TRUE(BecomesTrue([&] { return submitted >= want; })) << submitted;
      if (smallest) {
        EXPECT_EQ(submitted, 2U) << "there is one block";
      }
      gate_.Open();
    };
    submitted = 0;
    gate_.Close();
    BeginCommit(run, 1, 1);
    ASSERT_TRUE(run.Step(2, 1.0F).ok());
    run.before_update = nullptr;
    Commit(run, 2, 2);
  }
}

TEST_F(CommitTest, AWriteThatFailsLeavesTheCommitOfTheDeviceBeforeItThere) {
  size_t second_failed = 0;
  for (uint64_t block = 50; block < 150; block += 9) {
    EngineOptions options = Options({.name = "device",
                                     .parameters = Tier::kDevice,
                                     .optimizer = Tier::kDevice,
                                     .smallest_host = block % 2 == 0});
    options.config.aio.faults = aio::FaultPlan{
        .faults = {{.operation = aio::Operation::kWrite, .first_block = block, .count = 1}}};
    std::vector<std::string> paths;
    {
      ToyRun run(options, 64_MiB);
      if (!run.created().ok() || !run.session().Initialize(ToyWeights).ok()) continue;
      ASSERT_TRUE(run.session().BeginCommit("{}").ok());
      if (!run.session().FinishCommit().ok()) continue;
      paths = run.session().state_paths();
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      BeginCommit(run, 1, 1);
      const auto step = run.Step(2, 1.0F);
      if (step.ok()) continue;  // a later one fails
      ++second_failed;
      EXPECT_EQ(step.status().error().code, ErrorCode::kIo);
      EXPECT_THAT(step.status().error().message, HasSubstr(paths[0]));
      EXPECT_FALSE(run.session().BeginStep().ok()) << "the failure is final";
    }
    const auto state = CommittedState::Open(paths);
    ASSERT_TRUE(state.ok()) << state.error().message;
    EXPECT_EQ((*state)->train_state().step, 0);
    EXPECT_THAT(Damages(**state), IsEmpty());
  }
  EXPECT_GE(second_failed, 2U);
}

TEST_F(CommitTest, AGradientThatIsNotFiniteEndsTheRunThoughOtherTilesWaitForItsBlocks) {
  const Placement placement{.name = "one record block", .with_gradients = true};
  const EngineOptions options = Options(placement);
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  // The first tile of the last layer: it is the first to be loaded ahead.
  const auto poisoned = [](ModuleId module, size_t tensor, uint64_t begin,
                           std::span<float> values) -> Status {
    PENSTOCK_TRY(ToyWeights(module, tensor, begin, values));
    if (offload::Index(module) == kLayers && tensor == 1 && begin == 0) {
      values[0] = std::numeric_limits<float>::infinity();
    }
    return {};
  };
  ASSERT_TRUE(run.session().Initialize(poisoned).ok());
  BeginAndEndCommit(run, 0, 0);
  run.before_update = [&] {
    // Until the optimizer's threads have nothing to do any more: updates that began are stuck.
    ASSERT_TRUE(run.session().compute_stream().Synchronize().ok());
    auto worked = run.meter().Totals().optimizer;
    int idle = 0;
    EXPECT_TRUE(BecomesTrue([&] {
      const auto before = std::exchange(worked, run.meter().Totals().optimizer);
      idle = before == worked && before.count() > 0 ? idle + 1 : 0;
      return idle == 1000;
    }));
  };
  const auto step = run.Step(1, 1.0F);
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.status().error().code, ErrorCode::kNumeric);
}

TEST_F(CommitTest, WithOneSlotACommitStandsUntilItIsFinished) {
  // With room for all updates, so that the commit ends without anybody waiting for it.
  const Placement placement{
      .name = "one slot", .with_gradients = true, .durable = false, .smallest_host = false};
  ToyRun run(Options(placement), 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  ASSERT_TRUE(run.Step(1, 1.0F).ok());
  BeginAndEndCommit(run, 1, 1);
  run.before_update = [&] {
    const auto paths = run.session().state_paths();
    EXPECT_TRUE(offload::StateReader::Open(paths, offload::StateLock::kHeld).ok());
  };
  ASSERT_TRUE(run.Step(2, 1.0F).ok());
  EXPECT_TRUE(run.session().Drain().ok());
}

TEST_F(CommitTest, ACommitThatFailsEndsTheTrainingBesideIt) {
  // Creating the file takes three syncs, the first commit the next two.
  for (const uint64_t sync : {3, 4}) {
    EngineOptions options = Options({.name = "nvme", .smallest_host = false});
    options.config.aio.faults = aio::FaultPlan{
        .faults = {{.operation = aio::Operation::kSync, .first_block = sync, .count = 1}}};
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    BeginCommit(run, 1, 1);
    const auto step = run.Step(2, 1.0F);
    ASSERT_FALSE(step.ok());
    EXPECT_EQ(step.error().code, ErrorCode::kIo);
    EXPECT_THAT(step.error().message, HasSubstr(run.session().state_paths()[0]));
    EXPECT_FALSE(run.session().BeginStep().ok()) << "the failure is final";
  }
}

TEST_F(CommitTest, DamageFoundBesideACommitKeepsItFromBeingMade) {
  std::vector<std::string> paths;
  {
    ToyRun run(GatedOptions({.name = "nvme", .tile_elements = 4096}), 64_MiB);
    TrainTwoStepsWithACommitAfterTheFirst(run);
    paths = run.session().state_paths();
    gate_.Close();
    BeginCommit(run, 2, 2);
    gate_.AwaitWaiting();
    DamageWeights(paths, /*committed=*/false);
    EXPECT_EQ(run.Step(3, 1.0F).status().error().code, ErrorCode::kCorruption);
    gate_.Open();
    EXPECT_FALSE(run.session().FinishCommit().ok());
  }
  const auto state = CommittedState::Open(paths);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ((*state)->train_state().step, 1);
  EXPECT_THAT(Damages(**state), IsEmpty());
}

TEST_F(CommitTest, ADurableCommitIsReportedDespiteAnyOtherFailure) {
  EngineOptions options = GatedOptions({.name = "nvme", .tile_elements = 4096});
  options.config.verify_commits = config::VerifyCommits::kOff;  // which would find the damage
  ToyRun run(options, 64_MiB);
  TrainTwoStepsWithACommitAfterTheFirst(run);
  const std::vector<std::string> paths = run.session().state_paths();
  BeginCommit(run, 2, 2);
  ASSERT_TRUE(BecomesTrue([&] { return ReadBeside(paths)->commit().head.step == 2; }));
  DamageWeights(paths, /*committed=*/true);
  const size_t modules = run.session().layout().model.modules.size();
  Status failure;
  auto step = run.session().BeginStep();
  ASSERT_TRUE(step.ok()) << step.error().message;
  for (uint32_t i = 0; failure.ok() && i < modules; ++i) {
    failure = step->Acquire(ModuleId{i}).status();
  }
  EXPECT_FALSE(failure.ok());
  const Status committed = run.session().FinishCommit();
  EXPECT_TRUE(committed.ok()) << committed.error().message;
}

TEST_F(CommitTest, NothingIsCommittedWhereWhatComesFirstFails) {
  for (const Tier home : {Tier::kDevice, Tier::kNvme}) {
    const Placement placement{.name = "first", .parameters = home, .optimizer = home};
    std::vector<std::string> paths;
    {
      ToyRun run(Options(placement), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      Commit(run, 0, 0);
      paths = run.session().state_paths();
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      const Status begun = run.session().BeginCommit(
          "{}", []() -> Status { return MakeError(ErrorCode::kOutOfSpace, "no room for rows"); });
      ASSERT_TRUE(begun.ok());
      const Status failed = run.session().FinishCommit();
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().message, "no room for rows");
    }
    const auto state = CommittedState::Open(paths);
    ASSERT_TRUE(state.ok()) << state.error().message;
    EXPECT_EQ((*state)->train_state().step, 0);
  }
}

TEST_F(CommitTest, ACommitThatIsRefusedForItsWeightsLeavesTheLastOneThere) {
  const Placement placement{.name = "device",
                            .parameters = Tier::kDevice,
                            .optimizer = Tier::kDevice,
                            .rule = kZeroByZero,
                            .durable = false};
  std::vector<std::string> paths;
  {
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    Commit(run, 0, 0);
    paths = run.session().state_paths();
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    BeginCommit(run, 1, 1);
    EXPECT_EQ(run.session().FinishCommit().error().code, ErrorCode::kNumeric);
    EXPECT_TRUE(run.session().CheckCommit().ok());
  }
  const auto state = CommittedState::Open(paths);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ((*state)->train_state().step, 0);
  EXPECT_THAT(Damages(**state), IsEmpty());
}

TEST_F(CommitTest, NonFiniteWeightsAreNamedByTheirFirstTileOnEveryPath) {
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    for (const bool with_gradients : {false, true}) {
      const Placement placement{.name = "not finite",
                                .parameters = home,
                                .optimizer = home,
                                .rule = kZeroByZero,
                                .optimizer_threads = 3,
                                .with_gradients = with_gradients,
                                .smallest_host = false};
      ToyRun run(Options(placement), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      BeginCommit(run, 1, 1);
      const Status refused = run.session().FinishCommit();
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kNumeric);
      EXPECT_THAT(refused.error().message, HasSubstr("weights of module in are"));
    }
  }
}

TEST_F(CommitTest, WeightsThatTheLastUpdateDestroyedAreNotCommittedInAnyHome) {
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    for (const bool skipped_since : {false, true}) {
      EngineOptions options = Options({.name = "destroyed",
                                       .parameters = home,
                                       .optimizer = home,
                                       .optimizer_threads = 2,
                                       .smallest_host = false});
      ToyRun run(options, 64_MiB, {}, false, /*lr=*/1e9);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      if (skipped_since) {
        ASSERT_TRUE(run.Step(2, 1.0F, kNaN).ok());
      }
      BeginCommit(run, skipped_since ? 2 : 1, 1);
      const Status refused = run.session().FinishCommit();
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kNumeric);
      EXPECT_THAT(refused.error().message,
                  HasSubstr("learning rate 1e+09, has destroyed the weights of in.weight: they are "
                            "as large as 1."));
    }
  }
}

TEST_F(CommitTest, WeightsThatWereLargeBeforeTheirUpdateAreCommitted) {
  const auto large = [](ModuleId module, size_t tensor, uint64_t begin,
                        std::span<float> values) -> Status {
    PENSTOCK_TRY(ToyWeights(module, tensor, begin, values));
    for (float& value : values) value *= 1e9F;
    return Status();
  };
  for (const Tier home : {Tier::kDevice, Tier::kNvme}) {
    ToyRun run(Options({.name = "large", .parameters = home, .optimizer = home}), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(large).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    Commit(run, 1, 1);
  }
}

TEST_F(CommitTest, ACommitThatWasBegunEndsBeforeTheEngineDoes) {
  std::vector<std::string> paths;
  {
    ToyRun run(Options({.name = "nvme"}), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    BeginCommit(run, 1, 1);
    paths = run.session().state_paths();
  }
  const auto state = CommittedState::Open(paths);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ((*state)->train_state().step, 1);
}

}  // namespace
}  // namespace penstock::zero
