// The engine in every placement: the same bits, budgets kept, failures reported, commits readable.
#include "zero/engine/engine.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/zero/engine_support.h"

namespace penstock::zero {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EngineTest, EveryPlacementGivesTheBitsOfTrainingOnTheDevice) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    const Outcome reference = TrainAndRead({.name = "device",
                                            .dtype = dtype,
                                            .parameters = Tier::kDevice,
                                            .optimizer = Tier::kDevice});
    const Placement placements[] = {
        {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
        {.name = "optimizer host", .parameters = Tier::kDevice, .optimizer = Tier::kHost},
        {.name = "optimizer nvme", .parameters = Tier::kDevice, .optimizer = Tier::kNvme},
        {.name = "parameters host, optimizer nvme", .parameters = Tier::kHost},
        {.name = "parameters nvme, optimizer host", .optimizer = Tier::kHost},
        {.name = "all nvme, smallest"},
        {.name = "all nvme, roomy", .smallest_host = false, .smallest_device = false},
        {.name = "all nvme, two threads", .optimizer_threads = 2, .smallest_host = false},
        {.name = "all nvme, two threads, smallest", .optimizer_threads = 2},
        {.name = "all nvme, depth 1", .queue_depth = 1},
        {.name = "all nvme, tiny tiles", .tile_elements = 4096},
        {.name = "all nvme, large tiles", .tile_elements = 1 << 20},
        {.name = "all nvme, serial", .overlap = false},
        {.name = "all nvme, one slot on the drive", .durable = false},
        {.name = "all nvme, any engine", .engine = aio::EngineKind::kAuto},
        {.name = "two drives", .drives = {1, 1}},
        {.name = "two drives, one slot", .durable = false, .drives = {1, 1}},
        {.name = "three drives, roomy", .smallest_host = false, .drives = {5, 1, 3}},
        {.name = "two drives, optimizer only", .parameters = Tier::kHost, .drives = {2, 1}},
    };
    for (Placement placement : placements) {
      placement.dtype = dtype;
      ExpectSameBits(TrainAndRead(placement), reference, placement.name);
    }
  }
}

TEST_F(EngineTest, TrainingContinuesUnchangedAfterACommitInTheMiddle) {
  const Outcome reference =
      TrainAndRead({.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice});
  for (Placement placement :
       {Placement{.name = "nvme"},
        Placement{.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
        Placement{.name = "mixed", .optimizer = Tier::kHost},
        Placement{.name = "one slot", .durable = false},
        Placement{.name = "two drives", .drives = {1, 2}}}) {
    ExpectSameBits(TrainAndRead(placement, 2), reference, placement.name);
  }
}

TEST_F(EngineTest, OnNvmeAStepReadsAtMost14AndWrites12BytesAParameter) {
  for (const std::vector<double>& drives : {std::vector<double>{1}, std::vector<double>{1, 1}}) {
    const Placement placement{
        .name = "nvme", .smallest_host = false, .smallest_device = true, .drives = drives};
    EngineOptions options = Options(placement);
    // Gradients and a few blocks: not enough to keep the states.
    options.host_memory =
        Engine::MinimumMemory(options.model, options.config).host_minimum + 400_KiB;
    ToyRun run(options, DeviceMemory(placement, options));
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    EngineCounters before;
    constexpr uint64_t kMeasured = 8;
    for (uint64_t step = 1; step <= kMeasured + 2; ++step) {
      ASSERT_TRUE(run.Step(step, 1).ok());
      if (step == 2) before = run.session().counters();
    }
    const EngineCounters after = run.session().counters();
    const auto elements = static_cast<double>(run.session().layout().model.elements() * kMeasured);
    // Reads ahead of the last step may be in; over eight steps that is less than 0.2 of a byte.
    EXPECT_LE(static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes) / elements, 14.2);
    EXPECT_LE(static_cast<double>(after.nvme_write_bytes - before.nvme_write_bytes) / elements,
              12.2);
    EXPECT_GT(after.evictions, 0);
  }
}

TEST_F(EngineTest, ABudgetOneByteTooSmallIsRefusedWithTheSmallestThatWorks) {
  EngineOptions options = Options({.name = "nvme"});
  const Bytes minimum = Engine::MinimumMemory(options.model, options.config).host_minimum;
  options.host_memory = minimum - 1_B;
  const ToyRun run(options, 64_MiB);
  ASSERT_FALSE(run.created().ok());
  EXPECT_EQ(run.created().error().code, ErrorCode::kBudget);
  EXPECT_NE(run.created().error().message.find(std::to_string(minimum.value)), std::string::npos)
      << run.created().error().message;
  EXPECT_TRUE(DrivesAreEmpty()) << "a refused run leaves nothing behind";
}

TEST_F(EngineTest, ADeviceOneAllocationTooSmallIsRefused) {
  const Placement placement{.name = "nvme"};
  const EngineOptions options = Options(placement);
  const ToyRun run(options, DeviceMemory(placement, options) - device::kDeviceAlignment);
  ASSERT_FALSE(run.created().ok());
  EXPECT_EQ(run.created().error().code, ErrorCode::kBudget);
}

TEST_F(EngineTest, AFailedWriteEndsTheRunWithOneErrorAndNoHang) {
  for (uint64_t block : {60, 75, 90, 120}) {
    EngineOptions options = Options({.name = "nvme", .tile_elements = 4096});
    options.config.aio.faults = aio::FaultPlan{.faults = {{.kind = aio::Fault::Kind::kError,
                                                           .operation = aio::Operation::kWrite,
                                                           .first_block = block,
                                                           .count = 1,
                                                           .error_number = 28}}};
    ToyRun run(options, 64_MiB);
    Status failure = run.created();
    if (failure.ok()) failure = run.session().Initialize(ToyWeights);
    for (uint64_t step = 1; failure.ok() && step <= 10; ++step)
      failure = run.Step(step, 1).status();
    if (failure.ok()) failure = run.session().Drain();
    ASSERT_FALSE(failure.ok()) << block;
    EXPECT_EQ(failure.error().code, ErrorCode::kOutOfSpace) << failure.error().message;
  }
}

TEST_F(EngineTest, AFailedReadEndsTheRunWithOneErrorAndNoHang) {
  for (uint64_t block : {0, 7, 40, 100}) {
    EngineOptions options = Options({.name = "nvme", .tile_elements = 4096});
    options.config.aio.faults = aio::FaultPlan{.faults = {{.kind = aio::Fault::Kind::kError,
                                                           .operation = aio::Operation::kRead,
                                                           .first_block = block}}};
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok());
    Status failure = run.session().Initialize(ToyWeights);
    for (uint64_t step = 1; failure.ok() && step <= 10; ++step)
      failure = run.Step(step, 1).status();
    ASSERT_FALSE(failure.ok()) << block;
    EXPECT_EQ(failure.error().code, ErrorCode::kIo) << failure.error().message;
    EXPECT_FALSE(run.session().BeginStep().ok()) << "the failure is final";
  }
}

TEST_F(EngineTest, ATileThatCannotBeMadeEndsTheStartThoughOthersWaitForItsBlocks) {
  for (const uint32_t module : {0, 1, 3}) {
    const EngineOptions options = Options({.name = "nvme", .optimizer_threads = 3});
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    const auto source = [module](ModuleId at, size_t tensor, uint64_t begin,
                                 std::span<float> values) -> Status {
      if (offload::Index(at) == module) return MakeError(ErrorCode::kNumeric, "no such weights");
      return ToyWeights(at, tensor, begin, values);
    };
    const Status filled = run.session().Initialize(source);
    ASSERT_FALSE(filled.ok()) << module;
    EXPECT_EQ(filled.error().message, "no such weights");
  }
}

TEST_F(EngineTest, TransientFaultsChangeNothing) {
  const Outcome reference =
      TrainAndRead({.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice});
  const Placement placement{.name = "nvme"};
  EngineOptions options = Options(placement);
  options.config.aio.faults =
      aio::FaultPlan{.seed = 3, .transient_chance = 0.1, .short_chance = 0.1, .reorder = true};
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok());
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  Outcome outcome;
  for (uint64_t step = 1, t = 1; step <= kSteps; ++step) {
    const float scale =
        step == 3 ? std::numeric_limits<float>::infinity() : 1.0F / static_cast<float>(step);
    const auto result = run.Step(t, scale);
    ASSERT_TRUE(result.ok()) << result.error().message;
    if (result->skipped) continue;
    ++t;
    outcome.norms.push_back(result->grad_norm);
  }
  Commit(run, kSteps, kSteps - 1);
  EXPECT_EQ(outcome.norms, reference.norms);
}

TEST_F(EngineTest, WithoutOverflowCheckANonFiniteGradientEndsTheRun) {
  for (const Placement& placement :
       {Placement{.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
        Placement{.name = "clipping"},
        Placement{.name = "updates begin with gradients", .with_gradients = true}}) {
    EngineOptions options = Options(placement);
    options.config.check_grad_overflow = false;
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok());
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    const auto result = run.Step(1, std::numeric_limits<float>::quiet_NaN());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kNumeric) << placement.name;
  }
}

TEST_F(EngineTest, ADamagedTileIsFoundByItsCommitAndNamed) {
  for (const std::vector<double>& drives : {std::vector<double>{1}, std::vector<double>{1, 1}}) {
    Train({.name = "nvme", .drives = drives});
    const auto state = CommittedState::Open(state_paths_);
    ASSERT_TRUE(state.ok());
    ASSERT_THAT(Damages(**state), IsEmpty());
    const std::string& damaged = state_paths_.back();
    const uint64_t size = std::filesystem::file_size(damaged);
    // Places in both slots: with two of them, only one is committed.
    size_t found = 0;
    for (const uint64_t at : {size / 5 * 2, size / 5 * 4}) {
      FlipBit(damaged, at);
      const std::vector<std::string> damages = Damages(**state);
      FlipBit(damaged, at);
      if (damages.empty()) continue;
      ++found;
      EXPECT_THAT(damages, ElementsAre(AllOf(HasSubstr("checksum of tile "), HasSubstr(damaged))));
    }
    EXPECT_EQ(found, 1);
  }
}

TEST_F(EngineTest, TheMomentsOfAFirstStepAreThoseOfItsGradient) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::string> paths;
    {
      ToyRun run(Options({.name = "first step", .dtype = dtype}), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      Commit(run, 1, 1);
      paths = run.session().state_paths();
    }
    const std::vector<float> exp_avg = CommittedValues(paths, StateKind::kExpAvg);
    const std::vector<float> exp_avg_sq = CommittedValues(paths, StateKind::kExpAvgSq);
    ASSERT_EQ(exp_avg.size(), exp_avg_sq.size());
    size_t zeros = 0;
    for (size_t i = 0; i < exp_avg.size(); ++i) {
      // (1 - 0.9) g and (1 - 0.999) g^2.
      EXPECT_NEAR(exp_avg_sq[i], 0.1F * exp_avg[i] * exp_avg[i], 1e-5F * exp_avg_sq[i]) << i;
      if (exp_avg[i] == 0) ++zeros;
    }
    EXPECT_LT(zeros, exp_avg.size() / 20);
  }
}

TEST_F(EngineTest, WhatTheTrainerCommittedIsReadBack) {
  Train({.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost});
  const auto state = CommittedState::Open(state_paths_);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ((*state)->train_state().step, kSteps);
  EXPECT_EQ((*state)->train_state().optimizer_steps, kSteps - 1);
  EXPECT_EQ((*state)->train_state().seed, 5);
  EXPECT_EQ((*state)->train_state().run_json, "{\"toy\":1}");
}

}  // namespace
}  // namespace penstock::zero
