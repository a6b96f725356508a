// What becomes of a step when a stream of the device fails, and what a commit moves.
#include <gmock/gmock.h>

#include "tests/zero/engine/replaced_streams.h"
#include "tests/zero/engine_support.h"

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
          return MakeFailingDevice(std::move(device), "copy-in", copies);
        });
        ASSERT_TRUE(run.created().ok()) << run.created().error().message;
        ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
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

TEST_F(EngineTest, ACommitOfTheDeviceBringsEachByteOfTheStateToTheHostOnce) {
  Bytes to_host;
  const Placement placement{
      .name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice};
  ToyRun run(Options(placement), 64_MiB, [&to_host](std::unique_ptr<device::Device> device) {
    return std::make_unique<DeviceOfStreams>(
        std::move(device), [&to_host](std::unique_ptr<device::Stream> stream, const std::string&) {
          return std::make_unique<CountingStream>(std::move(stream), to_host);
        });
  });
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  ASSERT_TRUE(run.Step(1, 1.0F).ok());
  const Bytes before = to_host;
  Commit(run, 1, 1);
  const offload::ShardLayout& layout = run.session().layout();
  const Bytes flags = Bytes{sizeof(uint32_t)} * layout.tiles.size();  // whether weights are finite
  EXPECT_EQ(to_host - before, layout.weight_bytes() + layout.record_bytes() + flags);
}

}  // namespace
}  // namespace penstock::zero
