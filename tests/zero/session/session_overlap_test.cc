// What a session does while updates are held up by the drive.
#include <chrono>
#include <future>
#include <memory>
#include <set>

#include "offload/state_reader.h"
#include "tests/deadline.h"
#include "tests/zero/engine_support.h"
#include "tests/zero/gate.h"
#include "zero/session/session.h"

namespace penstock::zero {
namespace {

class SessionOverlapTest : public EngineTest {
 protected:
  std::unique_ptr<ToyRun> Begin(const EngineOptions& options) {
    auto run = std::make_unique<ToyRun>(options, 64_MiB);
    EXPECT_TRUE(run->created().ok()) << run->created().error().message;
    EXPECT_TRUE(run->session().Initialize(ToyWeights).ok());
    return run;
  }

  /// Where the tiles of a module may be read from, once there is a commit.
  static std::set<FileOffset> OffsetsOf(const Session& session, ModuleId module) {
    const auto state =
        offload::StateReader::Open(session.state_paths(), offload::StateLock::kHeld).value();
    std::set<FileOffset> offsets;
    for (const offload::TileId tile : session.layout().TilesOf(module)) {
      for (const offload::Part part : {offload::Part::kWeight, offload::Part::kRecord}) {
        for (const int slot : {0, 1}) {
          const offload::TilePlace& place = state->header().tiles[offload::Index(tile)];
          offsets.insert(offload::PartOffset(state->geometry(0), place, part, slot));
        }
      }
    }
    return offsets;
  }
};

TEST_F(SessionOverlapTest, AStepReturnsWhileItsUpdatesRun) {
  Gate gate;
  EngineOptions options = Options({.name = "states on a drive that waits",
                                   .parameters = Tier::kHost,
                                   .tile_elements = 4096,
                                   .smallest_host = true});
  options.create_io = GatedBy<GatedReads>(gate);
  const auto run = Begin(options);
  gate.Close();
  auto finished = std::async(std::launch::async, [&] { return run->Step(1, 1.0F).status(); });
  const bool returned = finished.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_TRUE(returned) << "it waits for updates";
  // Whatever was read before the drive stood still.
  EXPECT_LT(run->session().counters().updates, run->session().layout().tiles.size());
  gate.Open();
  EXPECT_TRUE(finished.get().ok());
  EXPECT_TRUE(run->session().Drain().ok());
  EXPECT_EQ(run->session().counters().updates, run->session().layout().tiles.size());
}

TEST_F(SessionOverlapTest, AForwardBeginsWhileUpdatesOfWhatItUsesLaterAreHeldUp) {
  for (const Tier parameters : {Tier::kHost, Tier::kNvme}) {
    Hold hold;
    EngineOptions options =
        Options({.name = "states on a drive", .parameters = parameters, .tile_elements = 4096});
    options.create_io = GatedBy<HeldReads>(hold);
    const auto run = Begin(options);
    Commit(*run, 0, 0);
    const offload::ShardLayout& layout = run->session().layout();
    const ModuleId first{0};
    hold.Begin([of_first = OffsetsOf(run->session(), first)](const aio::Request& request) {
      return request.priority == aio::Priority::kStateRead && !of_first.contains(request.offset);
    });
    ASSERT_TRUE(run->Step(1, 1.0F).ok());
    auto step = run->session().BeginStep();
    ASSERT_TRUE(step.ok()) << step.error().message;
    auto acquired = std::async(std::launch::async, [&] { return step->Acquire(first).status(); });
    const bool passed = acquired.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    EXPECT_TRUE(passed) << "it waits for more than the updates of its own module";
    EXPECT_TRUE(BecomesTrue([&] { return hold.held() > 0; }));
    EXPECT_LT(run->session().counters().updates, layout.tiles.size());
    hold.End();
    EXPECT_TRUE(acquired.get().ok());
    ASSERT_TRUE(step->Drop().ok());
    EXPECT_TRUE(run->session().Drain().ok());
    EXPECT_EQ(run->session().counters().updates, layout.tiles.size());
  }
}

}  // namespace
}  // namespace penstock::zero
