// A training whose drive fails.
#include "front/training.h"

#include <gmock/gmock.h>

#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

Result<Plan> PlanWithFault(const TempFolder& folder, aio::Operation operation,
                           uint64_t first_block) {
  const json options{{"folders", {folder.Path()}}};
  PENSTOCK_ASSIGN(Plan plan, MakePlan(ConfigOf(kHomes[3], folder.Path()).dump(),
                                      ModelOf("bf16").dump(), options.dump()));
  plan.engine.create_io = [=](size_t, aio::EngineOptions aio, std::string* notice) {
    EXPECT_TRUE(aio.on_stall) << "nobody would hear of a drive that hangs";
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

}  // namespace
}  // namespace penstock::front
