// Commits that count only when they were read back: what one bad write comes to.
#include "zero/plan/commit_verification.h"

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offload/commit_verifier.h"
#include "tests/aio/faulty_writes.h"
#include "tests/zero/engine_support.h"
#include "tests/zero/gate.h"
#include "zero/engine/engine.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

using aio::BadWrite;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Reads that verify are the only ones behind writes.
bool Verifies(const aio::Request& request) {
  return request.operation == aio::Operation::kRead &&
         request.priority == aio::Priority::kWriteBack;
}

/// Where every part lives in its home.
CommitVerification PlanFor(const offload::ShardLayout& layout, const EngineOptions& options,
                           uint64_t host_tiles = 0) {
  return PlanCommitVerification(layout, options.config,
                                {.weight_home = options.config.parameter_home,
                                 .record_home = options.config.optimizer_home,
                                 .host_tiles = host_tiles});
}

/// What a drive was asked for.
struct DriveLog {
  Gate gate;  ///< verifying reads are submitted only while it is open
  std::atomic<uint64_t> writes = 0;
  std::atomic<uint64_t> verified_bytes = 0;
};

class LoggingEngine final : public aio::WrappedEngine {
 public:
  LoggingEngine(std::unique_ptr<aio::Engine> base, DriveLog& log)
      : WrappedEngine(std::move(base)), log_(log) {}

  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) ++log_.writes;
    if (Verifies(request)) {
      log_.gate.Pass();
      log_.verified_bytes += request.buffer.size();
    }
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  DriveLog& log_;
};

constexpr uint64_t kDamagedStep = 4;

class CommitVerificationTest : public EngineTest {
 protected:
  EngineOptions Verified(const Placement& placement) const {
    EngineOptions options = Options(placement);
    options.config.verify_commits = config::VerifyCommits::kOn;
    options.host_memory = 64_MiB;
    return options;
  }

  /// Trains with a commit after each step, from `first` on, until something fails.
  static Status TrainOn(ToyRun& run, uint64_t first, uint64_t t, bool skips) {
    for (uint64_t step = first; step <= kSteps; ++step) {
      const Result<StepOutcome> done = TrainStep(run, step, t, skips);
      PENSTOCK_TRY(done.status());
      if (!done->skipped) ++t;
      PENSTOCK_TRY(run.session().BeginCommit("{}"));
    }
    return run.session().FinishCommit();
  }

  Status TrainAnew(const EngineOptions& options) {
    ToyRun run(options, 64_MiB);
    PENSTOCK_TRY(run.created());
    state_paths_ = run.session().state_paths();
    PENSTOCK_TRY(run.session().Initialize(ToyWeights));
    return TrainOn(run, 1, 1, options.config.check_grad_overflow);
  }

  Status Resume(EngineOptions options, uint64_t from) {
    options.adopt = state_paths_;
    ToyRun run(options, 64_MiB);
    PENSTOCK_TRY(run.created());
    PENSTOCK_ASSIGN(const TrainState state, run.session().Adopt());
    EXPECT_EQ(state.step, from);
    return TrainOn(run, state.step + 1, state.optimizer_steps + 1,
                   options.config.check_grad_overflow);
  }

  static void MakeFaulty(EngineOptions& options, const aio::WriteFault& fault) {
    options.create_io = [fault](size_t, const aio::EngineOptions& aio, std::string* notice) {
      return aio::FaultyWrites::Create(aio, notice, fault);
    };
  }

  Outcome Undisturbed(const Placement& placement) {
    const Status trained = TrainAnew(Verified(placement));
    EXPECT_TRUE(trained.ok()) << trained.error().message;
    Outcome outcome;
    ReadStates(&outcome);
    return outcome;
  }
};

TEST_F(CommitVerificationTest, OneBadWriteCostsNoMoreThanTheCommitThatItIsIn) {
  // Step 3 is skipped, unless updates begin with their gradients. What lives on the drive was also
  // written before the first step; tiles of host homes and of the device are written by commits.
  struct Case {
    Placement placement;
    uint64_t write = 0;
    uint64_t version = 3;
  };
  const Case cases[] = {
      {{.name = "nvme"}, 3},
      {{.name = "nvme, updated with their gradients", .with_gradients = true}, 4, 4},
      {{.name = "weights on the host", .parameters = Tier::kHost}, 3},
      {{.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost}, 2},
      {{.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice}, 2}};
  for (const Case& c : cases) {
    const Outcome undisturbed = Undisturbed(c.placement);
    for (const BadWrite how : {BadWrite::kLost, BadWrite::kBitFlipped, BadWrite::kOldBlockKept,
                               BadWrite::kOneBlockAway}) {
      SCOPED_TRACE(fmt::format("{}, fault {}", c.placement.name, static_cast<int>(how)));
      EngineOptions options = Verified(c.placement);
      const EngineOptions healthy = options;
      MakeFaulty(options, {"record of tile 2,", c.write, how});
      const Status trained = TrainAnew(options);
      ASSERT_FALSE(trained.ok());
      EXPECT_EQ(trained.error().code, ErrorCode::kCorruption);
      EXPECT_THAT(
          trained.error().message,
          AllOf(HasSubstr("the commit of step 4 was taken back: checksum of tile 2 (module "
                          "layer.0) does not hold: record of version " +
                          std::to_string(c.version)),
                HasSubstr("read from " + state_paths_[0] + " at offset "), HasSubstr(", expected "),
                HasSubstr("nothing was written over the commit of step 3, and --resume "
                          "continues from it")));
      EXPECT_THAT(trained.error().message, Not(HasSubstr("\n")));
      const Status resumed = Resume(healthy, kDamagedStep - 1);
      ASSERT_TRUE(resumed.ok()) << resumed.error().message;
      Outcome outcome;
      ReadStates(&outcome);
      ExpectSameBits(outcome, undisturbed, c.placement.name);
    }
  }
}

TEST_F(CommitVerificationTest, WithoutVerificationTheSameWriteIsCommitted) {
  EngineOptions options =
      Verified({.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost});
  options.config.verify_commits = config::VerifyCommits::kOff;
  MakeFaulty(options, {"record of tile 2,", 4, BadWrite::kLost});
  EXPECT_TRUE(TrainAnew(options).ok()) << "the fault is in the last commit";
  const auto state = CommittedState::Open(state_paths_);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ((*state)->train_state().step, kSteps);
  EXPECT_THAT(Damages(**state), Not(IsEmpty()));
}

TEST_F(CommitVerificationTest, AStateThatIsMovedHasItsFirstCommitVerifiedAndNoOther) {
  for (const Tier home : {Tier::kNvme, Tier::kDevice}) {
    DriveLog log;
    EngineOptions options = Verified({.name = "x", .parameters = home, .optimizer = home});
    options.config.verify_commits = config::VerifyCommits::kOff;
    options.verify_first_commit = true;
    const EngineOptions healthy = options;
    options.create_io = GatedBy<LoggingEngine>(log);
    {
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.session().Commit("{}").ok());
      const uint64_t read = PlanFor(run.session().layout(), options).read.value;
      EXPECT_EQ(log.verified_bytes, read);
      EXPECT_EQ(run.session().counters().nvme_read_bytes, 0U) << "no step has read";
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      ASSERT_TRUE(run.session().Commit("{}").ok());
      EXPECT_EQ(log.verified_bytes, read);
    }
    options = healthy;
    MakeFaulty(options, {"record of tile 2,", 0, BadWrite::kBitFlipped});
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    EXPECT_EQ(run.session().Commit("{}").error().code, ErrorCode::kCorruption);
  }
}

TEST_F(CommitVerificationTest, NothingIsWrittenBeforeVerificationHasEnded) {
  for (const bool with_gradients : {false, true}) {
    DriveLog log;
    EngineOptions options = Verified({.name = "nvme", .with_gradients = with_gradients});
    options.create_io = GatedBy<LoggingEngine>(log);
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    uint64_t beside = 0;
    uint64_t expected_writes = 0;
    run.before_update = [&] {
      if (beside == 0) return;
      log.gate.AwaitWaiting();
      EXPECT_EQ(run.session().counters().updates,
                (beside - 1) * run.session().layout().tiles.size())
          << "an update was made of what is being verified";
      EXPECT_EQ(log.writes, expected_writes);
      log.gate.Open();
    };
    for (uint64_t t = 1; t <= 3; ++t) {
      const auto done = run.Step(t, 1.0F);
      ASSERT_TRUE(done.ok()) << done.error().message;
      ASSERT_TRUE(run.session().Drain().ok());
      log.gate.Close();
      expected_writes = log.writes + 1;  // the record
      ASSERT_TRUE(run.session().BeginCommit("{}").ok());
      beside = t + 1;
    }
    log.gate.Open();
    EXPECT_TRUE(run.session().FinishCommit().ok());
  }
}

/// What another rank does before all have voted may be to overwrite the commit before.
TEST_F(CommitVerificationTest, ARankVotesForACommitOnceItIsVerified) {
  DriveLog log;
  EngineOptions options = Verified({.name = "nvme"});
  options.create_io = GatedBy<LoggingEngine>(log);
  uint64_t read = 0;
  std::vector<uint64_t> votes;
  options.vote = [&](uint64_t step) {
    votes.push_back(step);
    EXPECT_EQ(log.verified_bytes, votes.size() * read) << "step " << step;
    return Status();
  };
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  read = PlanFor(run.session().layout(), options).read.value;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  for (uint64_t t = 1; t <= 2; ++t) {
    ASSERT_TRUE(run.Step(t, 1.0F).ok());
    ASSERT_TRUE(run.session().Commit("{}").ok());
  }
  EXPECT_THAT(votes, ElementsAre(1, 2));
}

TEST_F(CommitVerificationTest, ARankDoesNotVoteForACommitThatItTookBack) {
  EngineOptions options = Verified({.name = "nvme"});
  MakeFaulty(options, {"record of tile 2,", 2, BadWrite::kLost});
  std::vector<uint64_t> votes;
  options.vote = [&](uint64_t step) {
    votes.push_back(step);
    return Status();
  };
  EXPECT_FALSE(TrainAnew(options).ok());
  EXPECT_THAT(votes, ElementsAre(1));
}

TEST_F(CommitVerificationTest, NothingIsReadButWhatThePlanSaysAndNoStepCountsIt) {
  for (const Tier home : {Tier::kNvme, Tier::kHost, Tier::kDevice}) {
    const Placement placement{.name = "x", .parameters = home, .optimizer = home};
    EngineCounters counters[2];
    for (const bool verifies : {false, true}) {
      DriveLog log;
      EngineOptions options = Verified(placement);
      if (!verifies) options.config.verify_commits = config::VerifyCommits::kOff;
      options.create_io = GatedBy<LoggingEngine>(log);
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(TrainOn(run, 1, 1, /*skips=*/true).ok());
      ASSERT_TRUE(run.session().Drain().ok());
      counters[verifies ? 1 : 0] = run.session().counters();
      const CommitVerification plan = PlanFor(run.session().layout(), options);
      // Step 3 is skipped: its commit names the tiles of the one before, which were read back.
      EXPECT_EQ(log.verified_bytes, verifies ? (kSteps - 1) * plan.read.value : 0);
      EXPECT_EQ(run.session().counters().nvme_verify_bytes, log.verified_bytes);
      EXPECT_LE(run.session().host_peak(), options.host_memory);
    }
    EXPECT_EQ(counters[0].nvme_read_bytes, counters[1].nvme_read_bytes);
    EXPECT_EQ(counters[0].nvme_write_bytes, counters[1].nvme_write_bytes);
    EXPECT_EQ(counters[0].nvme_commit_bytes, counters[1].nvme_commit_bytes);
  }
}

/// Other ranks that wait for it do not take it for stuck.
TEST_F(CommitVerificationTest, ACommitSaysThatItGetsOnWhileItIsWrittenAndReadBack) {
  for (const Tier home : {Tier::kNvme, Tier::kHost, Tier::kDevice}) {
    for (const bool verifies : {false, true}) {
      EngineOptions options = Verified({.name = "x", .parameters = home, .optimizer = home});
      if (!verifies) options.config.verify_commits = config::VerifyCommits::kOff;
      std::atomic<uint64_t> pieces = 0;
      options.progressed = [&pieces] { ++pieces; };
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      ASSERT_TRUE(run.Step(1, 1.0F).ok());
      ASSERT_TRUE(run.session().Drain().ok());
      EXPECT_EQ(pieces, 0U);
      ASSERT_TRUE(run.session().Commit("{}").ok());
      const size_t tiles = run.session().layout().tiles.size();
      const size_t parts = (home == Tier::kNvme ? 0 : 1) + (verifies ? 2 : 0);
      EXPECT_GE(pieces, parts * tiles) << ToString(home) << verifies;
    }
  }
}

TEST_F(CommitVerificationTest, TheRoomIsInThePlanAndIsNoMoreThanATile) {
  EngineOptions options = Verified({.name = "nvme", .tile_elements = 1 << 20});
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  const Bytes room = offload::CommitVerifier::Room(layout);
  EXPECT_GT(room, 0_B);
  EXPECT_LE(room, std::max(layout.largest_weight() + layout.largest_record(), 32_KiB));
  const auto need = [&] {
    return MinimumMemory(options.model, layout, options.config).host_minimum;
  };
  const Bytes with = need();
  options.config.verify_commits = config::VerifyCommits::kOff;
  const Bytes without = need();
  EXPECT_EQ(with - without, room);
}

TEST_F(CommitVerificationTest, AutoVerifiesWhereItCostsAFiftiethOfWhatStepsMove) {
  EngineOptions options = Options({.name = "nvme"});
  config::Config& config = options.config;
  config.commit_every_seconds = 0;
  const offload::ShardLayout layout = MakeLayout(options.model, config);
  // Every part is read and written in a step, and read once by a commit.
  for (const auto& [steps, on] : {std::pair(24, false), {25, true}, {100, true}}) {
    config.commit_every_steps = steps;
    const CommitVerification plan = PlanFor(layout, options);
    EXPECT_EQ(plan.on, on) << steps;
    EXPECT_DOUBLE_EQ(plan.cost, 0.5 / steps);
    EXPECT_EQ(plan.notice.empty(), on) << plan.notice;
  }
  config.commit_every_steps = 1;
  EXPECT_THAT(PlanFor(layout, options).notice,
              AllOf(HasSubstr("commits are not verified: reading commits back would cost 50 % of "
                              "the steps between two commits"),
                    HasSubstr("when the commit before may be overwritten already"),
                    HasSubstr("set penstock.verify_commits to true")));
  config.verify_commits = config::VerifyCommits::kOn;
  EXPECT_TRUE(PlanFor(layout, options).on);
  EXPECT_THAT(PlanFor(layout, options).notice, IsEmpty());
  config.verify_commits = config::VerifyCommits::kOff;
  EXPECT_FALSE(PlanFor(layout, options).on);
  EXPECT_THAT(PlanFor(layout, options).notice, IsEmpty());
}

/// Steps move half of the tiles, and a commit writes and reads back what host memory keeps.
TEST_F(CommitVerificationTest, TilesThatHostMemoryKeepsAreReadBackAndMoveNothingInAStep) {
  EngineOptions options = Options({.name = "nvme"});
  options.config.commit_every_seconds = 0;
  options.config.commit_every_steps = 100;
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  const uint64_t tiles = layout.tiles.size();
  double before = 0;
  for (uint64_t at_home = 0; at_home <= tiles; ++at_home) {
    const CommitVerification plan = PlanFor(layout, options, at_home);
    EXPECT_EQ(plan.read, PlanFor(layout, options).read);
    EXPECT_GT(plan.cost, before) << at_home;
    EXPECT_EQ(plan.on, plan.cost <= kMaxVerificationShare) << at_home;
    EXPECT_EQ(plan.notice.empty(), plan.on) << plan.notice;
    before = plan.cost;
  }
  EXPECT_EQ(before, kUnknownCost);
  EXPECT_THAT(PlanFor(layout, options, tiles).notice, HasSubstr("steps move nothing on the drive"));
  options.config.commit_every_steps = 1'000'000;
  EXPECT_TRUE(PlanFor(layout, options, tiles - 1).on);
}

TEST_F(CommitVerificationTest, AnEngineDoesWhatItsMemoryPlanSays) {
  EngineOptions options = Options({.name = "nvme", .tier_split = true});
  options.config.commit_every_seconds = 0;
  options.config.commit_every_steps = 30;
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  const Bytes least = MinimumMemory(options.model, layout, options.config).host_minimum;
  std::set<bool> seen;
  for (const Bytes more : {0_B, 64_KiB, 1_MiB, 64_MiB}) {
    options.host_memory = least + more;
    const auto plan =
        PlanMemory(options.model, layout, options.config, 64_MiB, options.host_memory);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    seen.insert(plan->verification.on);
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run.Step(1, 1.0F).ok());
    ASSERT_TRUE(run.session().Commit("{}").ok());
    const uint64_t read = plan->verification.on ? plan->verification.read.value : 0;
    EXPECT_EQ(run.session().counters().nvme_verify_bytes, read) << ToString(more);
    EXPECT_EQ(run.session().host_peak(), HostNeed(layout, options.config, *plan).total());
    if (!plan->verification.on) {
      EXPECT_THAT(run.session().notices(), Contains(plan->verification.notice));
    }
  }
  EXPECT_EQ(seen.size(), 2) << "both are tried";
}

TEST_F(CommitVerificationTest, AutoVerifiesWhereItTakesAFiftiethOfTheSecondsBetweenCommits) {
  EngineOptions options =
      Options({.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost});
  config::Config& config = options.config;
  const offload::ShardLayout layout = MakeLayout(options.model, config);
  // 12 bytes an element of bf16 with two moments, at 1 GB/s unless the drive's speed is known.
  const double seconds = 12e-9 * static_cast<double>(layout.model.parameters);
  config.commit_every_seconds = 51 * seconds;
  EXPECT_TRUE(PlanFor(layout, options).on);
  config.commit_every_seconds = 49 * seconds;
  EXPECT_FALSE(PlanFor(layout, options).on);
  config.drive = {.read_gbps = 2, .write_gbps = 1};
  EXPECT_TRUE(PlanFor(layout, options).on);
  // Commits come by steps as well, and of those the cost is not known.
  config.commit_every_steps = 1000;
  const CommitVerification plan = PlanFor(layout, options);
  EXPECT_FALSE(plan.on);
  EXPECT_THAT(plan.notice, HasSubstr("steps move nothing on the drive"));
  // No commit comes before the last.
  config.commit_every_steps = 0;
  config.commit_every_seconds = 0;
  EXPECT_TRUE(PlanFor(layout, options).on);
}

TEST_F(CommitVerificationTest, WithOneSlotDamageIsReportedAndNoOtherCommitIsPromised) {
  EngineOptions options = Verified({.name = "nvme", .durable = false});
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  config::Config automatic = options.config;
  automatic.verify_commits = config::VerifyCommits::kAuto;
  EXPECT_FALSE(PlanCommitVerification(layout, automatic, {}).on);
  MakeFaulty(options, {"record of tile 2,", 3, BadWrite::kLost});
  {
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    EXPECT_THAT(run.session().notices(),
                Contains(HasSubstr("there is no commit before it to go back to")));
  }
  const Status trained = TrainAnew(options);
  ASSERT_FALSE(trained.ok());
  EXPECT_THAT(trained.error().message,
              AllOf(HasSubstr("the commit of step 4 is damaged: checksum of tile 2 "),
                    HasSubstr("there is no commit before it")));
}

TEST_F(CommitVerificationTest, ABadFirstCommitLeavesNoneAndSaysSo) {
  EngineOptions options = Verified({.name = "nvme"});
  MakeFaulty(options, {"weight of tile 5,", 0, BadWrite::kBitFlipped});
  ToyRun run(options, 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  const Status committed = run.session().Commit("{}");
  ASSERT_FALSE(committed.ok());
  EXPECT_THAT(committed.error().message,
              AllOf(HasSubstr("the commit of step 0 was taken back: checksum of tile 5 "),
                    HasSubstr("there is no commit before it"), Not(HasSubstr("new run"))));
  EXPECT_EQ(run.session().committed_step(), std::nullopt);
}

}  // namespace
}  // namespace penstock::zero
