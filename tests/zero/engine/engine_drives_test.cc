// The engine over several drives.
#include <gmock/gmock.h>

#include "aio/drive_speed.h"
#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(EngineTest, MeasuringTheDrivesIsNotCountedAsTraining) {
  EngineOptions options = Options({.name = "nvme", .drives = {1, 1}});
  options.probe = aio::MeasureFile;
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  const EngineCounters counters = run.session().counters();
  EXPECT_EQ(counters.nvme_read_bytes, 0);
  EXPECT_EQ(counters.nvme_write_bytes, 0);
  EXPECT_GT(counters.nvme_init_bytes, 0);
  EXPECT_THAT(run.session().notices(), Contains(HasSubstr("state over 2 drives: ")));
}

TEST_F(EngineTest, SimulatedDrivesShareEquallyAndUnmeasured) {
  EngineOptions options = Options({.name = "nvme", .drives = {3, 1}});
  options.config.aio.simulate = aio::SimulatedDrive{};
  options.probe = [](aio::Engine&, const aio::File&, Bytes) {
    ADD_FAILURE() << "there is nothing to measure";
    return Result<double>(1);
  };
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  const auto step = run.Step(1, 1);
  ASSERT_TRUE(step.ok()) << step.error().message;
  ASSERT_TRUE(run.session().Drain().ok());
  EXPECT_GT(run.session().counters().nvme_write_bytes, 0);
  EXPECT_THAT(run.session().notices(),
              Contains(AllOf(HasSubstr("state over 2 drives: 5"), Not(HasSubstr("GB/s")))));
  EXPECT_TRUE(DrivesAreEmpty());
}

TEST_F(EngineTest, AFaultOfTheSecondDriveEndsTheRunWithItsPath) {
  for (const aio::Operation operation : {aio::Operation::kRead, aio::Operation::kWrite}) {
    EngineOptions options = Options({.name = "nvme", .tile_elements = 4096, .drives = {1, 1}});
    options.create_io = [&](size_t path, aio::EngineOptions aio, std::string* notice) {
      if (path == 1) {
        aio.faults =
            aio::FaultPlan{.faults = {{.operation = operation, .first_block = 30, .count = 1}}};
      }
      return aio::CreateEngine(aio, notice);
    };
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok());
    Status failure = run.session().Initialize(ToyWeights);
    for (uint64_t step = 1; failure.ok() && step <= 10; ++step)
      failure = run.Step(step, 1).status();
    if (failure.ok()) failure = run.session().Drain();
    ASSERT_FALSE(failure.ok());
    EXPECT_EQ(failure.error().code, ErrorCode::kIo);
    EXPECT_THAT(failure.error().message, HasSubstr(options.state_folders[1]));
  }
}

}  // namespace
}  // namespace penstock::zero
