// A training whose drive fails, or does not do what it says.
#include "front/training.h"

#include <gmock/gmock.h>

#include "front/description.h"
#include "tests/aio/faulty_writes.h"
#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Result<Plan> PlanWithFault(const TempFolder& folder, aio::Operation operation,
                           uint64_t first_block) {
  const json options{{"folders", {folder.Path()}}};
  PENSTOCK_ASSIGN(Plan plan, MakePlan(ConfigOf(kHomes[3], folder.Path()).dump(),
                                      ModelOf("bf16").dump(), options.dump()));
  plan.engine.create_io = [=](size_t, aio::EngineOptions aio, std::string* notice) {
    EXPECT_TRUE(aio.on_stall) << "a hanging drive would not be reported";
    aio.faults = aio::FaultPlan{
        .faults = {{.operation = operation, .first_block = first_block, .count = 1}}};
    return aio::CreateEngine(aio, notice);
  };
  return plan;
}

Status FillAll(Training& training) {
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    std::vector<Values> values;
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      values.push_back(
          FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, tensor));
    }
    const void* tensors[] = {values[0].bytes.data(), values[1].bytes.data(),
                             values[2].bytes.data()};
    PENSTOCK_TRY(training.Fill(unit, tensors));
  }
  return {};
}

Status StepOf(Training& training) {
  const GroupScalars groups[] = {{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
                                 {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}};
  std::vector<std::byte> buffer(1 << 20);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    PENSTOCK_TRY(training.Use(unit, UseKind::kForward, UnitMemory(buffer.data())));
    for (const uint32_t tensor : {0U, 1U}) {
      PENSTOCK_TRY(training.Gradient(unit, tensor, nullptr, DType::kFloat32));
    }
  }
  return training.EndStep(groups, 0, 1).status();
}

TEST(TrainingTest, AFaultOfTheDriveEndsTheTrainingWithItsFirstError) {
  for (const aio::Operation operation : {aio::Operation::kRead, aio::Operation::kWrite}) {
    for (const uint64_t block : {3, 30, 60}) {
      const TempFolder folder;
      auto plan = PlanWithFault(folder, operation, block);
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      auto training = Training::Create(*std::move(plan));
      Status failure = training.status();
      if (failure.ok()) failure = FillAll(**training);
      for (int step = 0; failure.ok() && step < 20; ++step) failure = StepOf(**training);
      ASSERT_FALSE(failure.ok()) << block;
      EXPECT_EQ(failure.error().code, ErrorCode::kIo) << failure.error().message;
      EXPECT_THAT(failure.error().message, HasSubstr(folder.Path()));
      if (!training.ok()) continue;
      EXPECT_EQ((*training)->Use(0, UseKind::kAside, UnitMemory(nullptr)).error().message,
                failure.error().message);
      EXPECT_FALSE((*training)->BeginCommit("{}").ok());
    }
  }
}

TEST(TrainingTest, ADriveThatDoesNotAnswerIsNamedInALineThatSteersNoTerminal) {
  const TempFolder folder;
  auto plan = PlanWithFault(folder, aio::Operation::kRead, 0);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  plan->engine.create_io = [](size_t, const aio::EngineOptions& aio, std::string* notice) {
    aio.on_stall("read of /nvme/\x1b[2J\nrun hangs");
    return aio::CreateEngine(aio, notice);
  };
  ::testing::internal::CaptureStderr();
  const auto training = Training::Create(*std::move(plan));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("penstock: warning: read of /nvme/\\u001b[2J run hangs\n"));
  EXPECT_TRUE(training.ok()) << training.error().message;
}

/// Steps with a commit after each, up to the third.
Status StepsWithCommits(Training& training) {
  while (training.counts().step < 3) {
    PENSTOCK_TRY(StepOf(training));
    PENSTOCK_TRY(training.BeginCommit("{}"));
    PENSTOCK_TRY(training.FinishCommit());
  }
  return {};
}

/// The same commits as in the program (tests/zero/engine/commit_verification_test.cc).
TEST(TrainingTest, ACommitWithABadWriteIsTakenBackAndTheOneBeforeContinues) {
  for (const Home& home : kHomes) {
    SCOPED_TRACE(home.name);
    const TempFolder folder;
    json config = ConfigOf(home, folder.Path());
    config["penstock"]["verify_commits"] = true;
    json options{{"folders", {folder.Path()}}};
    const auto plan_of = [&] {
      return MakePlan(config.dump(), ModelOf("bf16").dump(), options.dump());
    };
    Result<Plan> plan = plan_of();
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    // Writes of host homes are those of commits; on the drive the first one is before the steps.
    const bool on_drive =
        plan->engine.config.optimizer_home == Tier::kNvme && !plan->engine.config.tier_split;
    plan->engine.create_io = [&](size_t, const aio::EngineOptions& aio, std::string* notice) {
      return aio::FaultyWrites::Create(
          aio, notice, {"record of tile 1,", on_drive ? 2U : 1U, aio::BadWrite::kBitFlipped});
    };
    std::vector<std::string> paths;
    {
      auto training = Training::Create(*std::move(plan));
      ASSERT_TRUE(training.ok()) << training.error().message;
      paths = (*training)->engine().state_paths();
      ASSERT_TRUE(FillAll(**training).ok());
      const Status failed = StepsWithCommits(**training);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().code, ErrorCode::kCorruption);
      EXPECT_THAT(failed.error().message, HasSubstr("the commit of step 2 was taken back"));
      EXPECT_GT((*training)->engine().counters().nvme_verify_bytes, 0U);
      EXPECT_EQ((*training)->BeginCommit("{}").error().message, failed.error().message);
    }
    options["continue"] = paths;
    plan = plan_of();
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    auto training = Training::Create(*std::move(plan));
    ASSERT_TRUE(training.ok()) << training.error().message;
    EXPECT_EQ((*training)->counts().step, 1U);
    const Status trained = StepsWithCommits(**training);
    EXPECT_TRUE(trained.ok()) << trained.error().message;
  }
}

/// By the keys of the configuration, as commits come when they are called for.
TEST(TrainingTest, APlanSaysWhetherCommitsAreVerifiedAndATrainingDoesThat) {
  for (const bool keeps_all : {false, true}) {
    const TempFolder folder;
    json config = ConfigOf(kHomes[3], folder.Path());
    config["penstock"].update(
        {{"tier_split", keeps_all}, {"commit_every_steps", 100}, {"commit_every_seconds", 0}});
    auto plan =
        MakePlan(config.dump(), ModelOf("bf16").dump(), json{{"folders", {folder.Path()}}}.dump());
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(json::parse(DescribePlan(*plan))["verify_commits"], !keeps_all);
    auto training = Training::Create(*std::move(plan));
    ASSERT_TRUE(training.ok()) << training.error().message;
    ASSERT_TRUE(FillAll(**training).ok());
    ASSERT_TRUE((*training)->BeginCommit("{}").ok());
    ASSERT_TRUE((*training)->FinishCommit().ok());
    EXPECT_EQ((*training)->engine().counters().nvme_verify_bytes == 0, keeps_all);
    EXPECT_EQ(::testing::Matches(Contains(HasSubstr("steps move nothing on the drive")))(
                  (*training)->notices()),
              keeps_all);
  }
}

}  // namespace
}  // namespace penstock::front
