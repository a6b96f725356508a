// What becomes of a step when a stream of the device fails.
#include <gmock/gmock.h>

#include "tests/zero/engine_support.h"
#include "tests/zero/failing_device.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

/// Some of the copies of the first step, and some of later ones.
TEST_F(EngineTest, AStepWhoseWeightsWereNotCopiedToTheDeviceFails) {
  for (const uint64_t copies : {0, 3, 11, 50, 110}) {
    for (const Tier home : {Tier::kHost, Tier::kNvme}) {
      for (const bool with_gradients : {false, true}) {
        const EngineOptions options = Options(
            {.name = "x", .parameters = home, .optimizer = home, .with_gradients = with_gradients});
        ToyRun run(options, 64_MiB, [copies](std::unique_ptr<device::Device> device) {
          return std::make_unique<FailingDevice>(std::move(device), "copy-in", copies);
        });
        ASSERT_TRUE(run.created().ok()) << run.created().error().message;
        ASSERT_TRUE(run.engine().Initialize(ToyWeights).ok());
        Status failure;
        uint64_t steps = 0;
        while (failure.ok() && steps < 10) failure = run.Step(++steps, 1.0F).status();
        ASSERT_FALSE(failure.ok()) << copies;
        EXPECT_THAT(failure.error().message, HasSubstr("stream copy-in: a copy failed"));
        EXPECT_EQ(steps == 1, copies < 50) << "the step that it belongs to, and no later one";
      }
    }
  }
}

}  // namespace
}  // namespace penstock::zero
