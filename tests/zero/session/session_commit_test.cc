// Commits that the losses after them speak against.
#include <gmock/gmock.h>

#include <limits>
#include <map>

#include "offload/caller_file.h"
#include "tests/offload/full_drive.h"
#include "tests/search_share.h"
#include "tests/zero/engine_support.h"
#include "zero/session/session.h"

namespace penstock::zero {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;

class SessionCommitTest : public EngineTest {
 protected:
  struct Run {
    Status status;
    std::vector<std::string> paths;
    std::optional<uint64_t> taken_back;
    std::optional<uint64_t> committed;  ///< the step, as the session says at the end
    uint64_t begun = 0;                 ///< the step of the last commit that was begun
    bool taking_back = false;           ///< it was begun
  };

  /// Two steps with a commit after each from `first_commit` on, two whose losses are these, and the
  /// end.
  static Run Train(const EngineOptions& options, uint64_t first_commit,
                   const std::vector<double>& losses) {
    Run result;
    ToyRun run(options, 64_MiB);
    result.status = run.created();
    if (!result.status.ok()) return result;
    Session& session = run.session();
    result.paths = session.state_paths();
    result.status = session.Initialize(ToyWeights);
    for (uint64_t t = 1; result.status.ok() && t <= 2; ++t) {
      result.status = run.Step(t, 1.0F).status();
      if (result.status.ok() && t >= first_commit) {
        result.begun = t;
        result.status = session.Commit("{}");
      }
    }
    uint64_t t = 3;
    for (const double loss : losses) {
      if (!result.status.ok()) break;
      result.status = run.Step(t, 1.0F, loss).status();
      if (std::isfinite(loss)) ++t;
    }
    if (result.status.ok()) result.status = session.Drain();
    if (result.status.ok()) {
      result.taking_back = true;
      const auto taken = session.TakeBackDoubtfulCommit();
      result.status = taken.status();
      if (taken.ok()) result.taken_back = *taken;
      if (!options.config.aio.faults) {
        EXPECT_EQ(session.BeginStep().ok(), !result.taken_back);
      }
    }
    result.committed = session.committed_step();
    return result;
  }

  /// A drive that crashes at a block, or at a sync.
  EngineOptions CrashingOptions(Tier home, bool sync, uint64_t at) const {
    EngineOptions options = PlainOptions({.name = "x",
                                          .parameters = home,
                                          .optimizer = home,
                                          .tile_elements = 4096,
                                          .with_gradients = true,
                                          .smallest_host = false});
    aio::FaultPlan plan{.seed = at, .lose_unsynced = true};
    (sync ? plan.crash_at_sync : plan.crash_at_block) = at;
    options.config.aio.faults = plan;
    return options;
  }

  /// Returns a block shortly before those of the commit of a step.
  uint64_t FirstBlockOfCommit(uint64_t step, Tier home) const {
    constexpr uint64_t kLeap = 16;
    uint64_t at = 0;
    while (Train(CrashingOptions(home, /*sync=*/false, at), 1, {}).begun < step) at += kLeap;
    return at - std::min(at, kLeap);
  }

  /// The same as Train; looks at what is committed afterwards.
  Run TrainAndLook(const EngineOptions& options, const std::vector<double>& losses,
                   const std::string& name) {
    Run run = Train(options, 1, losses);
    if (run.begun == 0) return run;
    const uint64_t at_the_end = std::isfinite(losses.back()) ? 2 : 1;
    const uint64_t found = CommittedStep(run.paths, name);
    if (run.status.ok()) {
      EXPECT_EQ(found, at_the_end) << name;
    } else if (run.taking_back) {
      EXPECT_THAT(found, AnyOf(2, at_the_end)) << name;
    } else {
      EXPECT_THAT(found, AnyOf(run.begun - 1, run.begun)) << name;
    }
    return run;
  }

  /// The step that a reader finds committed, with the bits of that step; 0: none.
  uint64_t CommittedStep(const std::vector<std::string>& paths, const std::string& name) {
    const auto state = CommittedState::Open(paths);
    if (!state.ok()) {
      EXPECT_EQ(state.error().code, ErrorCode::kNotFound) << name << state.error().message;
      return 0;
    }
    EXPECT_THAT(Damages(**state), IsEmpty()) << name;
    const uint64_t step = (*state)->train_state().step;
    EXPECT_EQ(CommittedValues(paths, StateKind::kMaster), MasterOf(step)) << name;
    return step;
  }

  /// The masters after a step without anything else.
  const std::vector<float>& MasterOf(uint64_t step) {
    if (masters_.empty()) {
      for (const uint64_t at : {1, 2}) {
        const std::vector<std::string> paths = [&] {
          ToyRun run(PlainOptions({.name = "plain",
                                   .parameters = Tier::kHost,
                                   .optimizer = Tier::kHost,
                                   .with_gradients = true,
                                   .smallest_host = false}),
                     64_MiB);
          EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
          for (uint64_t t = 1; t <= at; ++t) EXPECT_TRUE(run.Step(t, 1.0F).ok());
          EXPECT_TRUE(run.session().Commit("{}").ok());
          return run.session().state_paths();
        }();
        masters_[at] = CommittedValues(paths, StateKind::kMaster);
      }
    }
    return masters_[step];
  }

  /// Without clipping or a check, so that the bits are the same in each, and with few tiles, so
  /// that a crash can come at each block.
  EngineOptions PlainOptions(Placement placement) const {
    const bool with_gradients = placement.with_gradients;
    placement.with_gradients = true;
    EngineOptions options = Options(placement);
    options.model = ToySpec(2, 10000);
    options.config.check_grad_overflow = !with_gradients;
    return options;
  }

  std::vector<Placement> Placements() const {
    std::vector<Placement> placements;
    for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      for (const bool with_gradients : {false, true}) {
        placements.push_back({.name = fmt::format("{} {}", ToString(home), with_gradients),
                              .parameters = home,
                              .optimizer = home,
                              .tile_elements = 4096,
                              .with_gradients = with_gradients,
                              .smallest_host = false});
      }
    }
    return placements;
  }

 private:
  std::map<uint64_t, std::vector<float>> masters_;
};

TEST_F(SessionCommitTest, ACommitAfterWhichNoLossWasFiniteIsTakenBackAndTheOneBeforeStands) {
  for (const Placement& placement : Placements()) {
    const Run run = Train(PlainOptions(placement), 1, {kNaN, kNaN});
    ASSERT_TRUE(run.status.ok()) << placement.name << ": " << run.status.error().message;
    EXPECT_EQ(run.taken_back, 2) << placement.name;
    EXPECT_EQ(run.committed, 1) << placement.name;
    EXPECT_EQ(CommittedStep(run.paths, placement.name), 1);
  }
}

TEST_F(SessionCommitTest, AFiniteLossAfterOthersConfirmsTheCommit) {
  for (const Placement& placement : Placements()) {
    const Run run = Train(PlainOptions(placement), 1, {kNaN, 1.0, kNaN});
    ASSERT_TRUE(run.status.ok()) << placement.name << ": " << run.status.error().message;
    EXPECT_FALSE(run.taken_back) << placement.name;
    EXPECT_EQ(run.committed, 2) << placement.name;
    EXPECT_EQ(CommittedStep(run.paths, placement.name), 2);
  }
}

TEST_F(SessionCommitTest, TheLossOfAStepThatIsDroppedCountsForTheCommitThatIsBeingMade) {
  for (const Placement& placement : Placements()) {
    for (const bool finite : {true, false}) {
      ToyRun run(PlainOptions(placement), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      Session& session = run.session();
      ASSERT_TRUE(session.Initialize(ToyWeights).ok());
      ASSERT_TRUE(session.Commit("{}").ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      ASSERT_TRUE(session.BeginCommit("{}").ok());
      {
        auto step = session.BeginStep();
        ASSERT_TRUE(step.ok()) << step.error().message;
        step->ReportLoss(finite ? 1 : kNaN);
        ASSERT_TRUE(step->Drop().ok());
      }
      ASSERT_TRUE(session.FinishCommit().ok());
      EXPECT_EQ(session.commit_is_doubtful(), !finite) << placement.name;
      EXPECT_EQ(session.committed_step(), 1U);
    }
  }
}

TEST_F(SessionCommitTest, WithoutALossAfterItACommitStands) {
  for (const Placement& placement : Placements()) {
    const Run run = Train(PlainOptions(placement), 1, {});
    ASSERT_TRUE(run.status.ok()) << placement.name << ": " << run.status.error().message;
    EXPECT_FALSE(run.taken_back) << placement.name;
    EXPECT_EQ(CommittedStep(run.paths, placement.name), 2);
  }
}

TEST_F(SessionCommitTest, WhereThereIsNoneBeforeOrNoSecondSlotTheOnlyCommitStays) {
  for (Placement placement : Placements()) {
    for (const bool durable : {true, false}) {
      placement.durable = durable;
      const Run run = Train(PlainOptions(placement), durable ? 2 : 1, {kNaN});
      ASSERT_TRUE(run.status.ok()) << placement.name << ": " << run.status.error().message;
      EXPECT_FALSE(run.taken_back) << placement.name;
      EXPECT_EQ(run.committed, 2) << placement.name;
      EXPECT_EQ(CommittedStep(run.paths, placement.name), 2);
    }
  }
}

TEST_F(SessionCommitTest, NoCommitIsMadeOverTheLastOneThatIsGood) {
  for (const Placement& placement : Placements()) {
    std::vector<std::string> paths;
    {
      ToyRun run(PlainOptions(placement), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      Session& session = run.session();
      ASSERT_TRUE(session.Initialize(ToyWeights).ok());
      for (uint64_t t = 1; t <= 2; ++t) {
        ASSERT_TRUE(run.Step(t, 1.0F).ok());
        ASSERT_TRUE(session.Commit("{}").ok());
      }
      ASSERT_TRUE(run.Step(3, 1.0F, kNaN).ok());
      const Status refused = session.BeginCommit("{}");
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kNumeric);
      ASSERT_TRUE(session.TakeBackDoubtfulCommit().ok());
      paths = session.state_paths();
    }
    EXPECT_EQ(CommittedStep(paths, placement.name), 1);
  }
}

TEST_F(SessionCommitTest, AWeightIsNotCommittedTwiceBeforeItHasProvedAnything) {
  for (const Placement& placement : Placements()) {
    ToyRun run(PlainOptions(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    Session& session = run.session();
    ASSERT_TRUE(session.Initialize(ToyWeights).ok());
    for (const uint64_t t : {1, 2}) {
      ASSERT_TRUE(run.Step(t, 1.0F).ok());
      ASSERT_TRUE(session.Commit("{}").ok());
    }
    const Status again = session.Commit("{}");
    ASSERT_FALSE(again.ok()) << placement.name;
    EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(again.error().message,
                ::testing::HasSubstr("no loss was computed since the commit of step 2"));
    ASSERT_TRUE(run.Step(3, 1.0F, kNaN).ok());
    EXPECT_EQ(session.TakeBackDoubtfulCommit().value(), 2) << placement.name;
    EXPECT_EQ(session.committed_step(), 1) << placement.name;
  }
}

TEST_F(SessionCommitTest, ACommitWhoseCallersFileFindsNoRoomIsNotMadeAndTrainingGoesOn) {
  const std::string text =
      fmt::format(R"({{"{}":{}}})", offload::kCallerFileKey, offload::CallerFileJson("attached"));
  for (const Placement& placement : Placements()) {
    std::vector<std::string> paths;
    {
      ToyRun run(PlainOptions(placement), 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      Session& session = run.session();
      paths = session.state_paths();
      ASSERT_TRUE(session.Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      ASSERT_TRUE(session.Commit("{}").ok());
      ASSERT_TRUE(run.Step(2, 1.0F).ok());
      {
        const FullDrive full;
        const Status made = session.Commit(text, "attached");
        ASSERT_FALSE(made.ok()) << placement.name;
        EXPECT_EQ(made.error().code, ErrorCode::kOutOfSpace) << made.error().message;
      }
      EXPECT_EQ(session.committed_step(), 1);
      // The same commit, now that there is room.
      const Status again = session.Commit(text, "attached");
      ASSERT_TRUE(again.ok()) << placement.name << again.error().message;
      EXPECT_EQ(session.committed_step(), 2);
      ASSERT_TRUE(run.Step(3, 1.0F).ok()) << placement.name;
    }
    EXPECT_EQ(CommittedStep(paths, placement.name), 2);
  }
}

TEST_F(SessionCommitTest, TheCopyOfACommitIsNotTakenBack) {
  for (const Placement& placement : Placements()) {
    const EngineOptions options = PlainOptions(placement);
    const auto old = CommittedState::Open(Train(options, 1, {}).paths, /*exclusive=*/true);
    ASSERT_TRUE(old.ok()) << old.error().message;
    std::vector<std::string> paths;
    {
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      Session& session = run.session();
      const auto fill = FillFromState(session.layout(), **old);
      ASSERT_TRUE(fill.ok()) << fill.error().message;
      const Status filled = session.Fill(*fill, (*old)->train_state());
      ASSERT_TRUE(filled.ok()) << filled.error().message;
      ASSERT_TRUE(session.Commit("{}").ok());
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(run.Step(3, 1.0F, kNaN).ok());
      EXPECT_FALSE(session.commit_is_doubtful());
      paths = session.state_paths();
    }
    EXPECT_EQ(CommittedStep(paths, placement.name), 2);
  }
}

TEST_F(SessionCommitTest, WithOneSlotACommitStandsWhileLossesAreNotFinite) {
  for (const bool with_gradients : {false, true}) {
    ToyRun run(PlainOptions({.name = "one slot",
                             .with_gradients = with_gradients,
                             .durable = false,
                             .smallest_host = false}),
               64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    ASSERT_TRUE(run.session().Commit("{}").ok());
    ASSERT_TRUE(run.Step(2, 1.0F, kNaN).ok());
    EXPECT_TRUE(run.session().CheckCommit().ok());
    ASSERT_TRUE(run.Step(2, 1.0F).ok());
    EXPECT_FALSE(run.session().CheckCommit().ok());
  }
}

TEST_F(SessionCommitTest, ACommitOfAnotherProcessIsNotTakenBack) {
  for (const Placement& placement : Placements()) {
    EngineOptions options = PlainOptions(placement);
    options.adopt = Train(options, 1, {}).paths;
    {
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Adopt().ok());
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(run.Step(3, 1.0F, kNaN).ok());
      const auto taken = run.session().TakeBackDoubtfulCommit();
      ASSERT_TRUE(taken.ok()) << taken.error().message;
      EXPECT_FALSE(*taken);
      EXPECT_EQ(run.session().committed_step(), 2);
    }
    EXPECT_EQ(CommittedStep(options.adopt, placement.name), 2);
  }
}

TEST_F(SessionCommitTest, ACrashAtAnyEventLeavesTheNewestCommitOrTheOneBefore) {
  size_t crashes = 0;
  size_t while_taking_back = 0;
  for (const Tier home : {Tier::kNvme, Tier::kHost}) {
    for (const std::vector<double>& losses : {std::vector{kNaN, kNaN}, std::vector{kNaN, 1.0}}) {
      for (const bool syncs : {true, false}) {
        // Until the second commit the losses make no difference.
        uint64_t at = syncs ? 0 : FirstBlockOfCommit(std::isfinite(losses.back()) ? 2 : 1, home);
        for (bool crashed = true; crashed; at += syncs ? 1 : kSearchStride) {
          const std::string name = fmt::format("{}, {} {}, last loss {}", ToString(home),
                                               syncs ? "sync" : "block", at, losses.back());
          const Run run = TrainAndLook(CrashingOptions(home, syncs, at), losses, name);
          crashed = !run.status.ok();
          crashes += crashed ? 1 : 0;
          while_taking_back += crashed && run.taking_back ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(while_taking_back, 0);
  EXPECT_GT(crashes, SearchShare(150));
}

}  // namespace
}  // namespace penstock::zero
