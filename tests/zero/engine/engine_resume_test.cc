// Resuming from a commit: in place or in other files, after an end, a crash or damage, with the
// bits of a training that was never interrupted.
#include <gmock/gmock.h>

#include "tests/search_share.h"
#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCommitAt = 3;

class ResumeTest : public EngineTest {
 protected:
  /// Trains from after `from` to the last step, commits there and ends the run.
  void GoOn(std::unique_ptr<ToyRun> running, const TrainState& from, Outcome* outcome) {
    ToyRun& run = *running;
    uint64_t t = from.optimizer_steps + 1;
    for (uint64_t step = from.step + 1; step <= kSteps; ++step) {
      const auto result = TrainStep(run, step, t);
      ASSERT_TRUE(result.ok()) << result.error().message;
      if (result->skipped) continue;
      ++t;
      outcome->norms.push_back(result->grad_norm);
    }
    Commit(run, kSteps, t - 1);
    state_paths_ = run.session().state_paths();
    running.reset();
    ReadStates(outcome);
  }

  /// Trains to the commit in `placement`, and nothing more.
  std::vector<std::string> TrainToCommit(const Placement& placement) {
    const EngineOptions options = Options(placement);
    ToyRun run(options, DeviceMemory(placement, options));
    EXPECT_TRUE(run.created().ok()) << run.created().error().message;
    EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
    uint64_t t = 1;
    for (uint64_t step = 1; step <= kCommitAt; ++step) {
      const auto result = TrainStep(run, step, t);
      EXPECT_TRUE(result.ok()) << result.error().message;
      if (result.ok() && !result->skipped) ++t;
    }
    Commit(run, kCommitAt, t - 1);
    return run.session().state_paths();
  }

  /// Resumes in place, in files of `paths`.
  Outcome Adopt(const Placement& placement, const std::vector<std::string>& paths) {
    Outcome outcome;
    EngineOptions options = Options(placement);
    options.adopt = paths;
    auto run = std::make_unique<ToyRun>(options, DeviceMemory(placement, options));
    EXPECT_TRUE(run->created().ok()) << placement.name << ": " << run->created().error().message;
    if (!run->created().ok()) return outcome;
    const Result<TrainState> from = run->session().Adopt();
    EXPECT_TRUE(from.ok()) << placement.name << ": " << from.error().message;
    if (!from.ok()) return outcome;
    EXPECT_EQ(from->step, kCommitAt);
    EXPECT_EQ(run->session().counters().nvme_write_bytes, 0);
    GoOn(std::move(run), *from, &outcome);
    return outcome;
  }

  struct Crash {
    std::vector<std::string> paths;
    uint64_t reported = 0;  ///< the step of the last commit that was said to be durable
    uint64_t begun = 0;     ///< and of the last that was begun
    bool crashed = false;
  };

  /// What the caller's file of a step's commit has: the lengths of neighbours differ.
  static std::string CallerOf(uint64_t step) {
    return std::string(3000 * (1 + step % 3), static_cast<char>('a' + step));
  }

  static void BeginCommitWithCaller(ToyRun& run, uint64_t step) {
    const std::string text =
        fmt::format(R"({{"caller_file":{}}})", offload::CallerFileJson(CallerOf(step)));
    const auto nothing = [] { return Status(); };
    EXPECT_TRUE(run.session().BeginCommit(text, nothing, CallerOf(step)).ok());
  }

  /// That the newest commit is whole, with its caller's file.
  static void ExpectWholeWithCaller(CommittedState& state, const std::string& name) {
    EXPECT_THAT(Damages(state), IsEmpty()) << name;
    const Result<std::string> caller = state.ReadCaller();
    ASSERT_TRUE(caller.ok()) << name << ": " << caller.error().message;
    EXPECT_EQ(*caller, CallerOf(state.train_state().step)) << name;
  }

  /// Trains with a commit a step until the drive's end, if that comes.
  static Crash TrainUntilCrash(const EngineOptions& options, bool with_caller) {
    Crash crash;
    ToyRun run(options, 64_MiB);
    Status status = run.created();
    if (status.ok()) crash.paths = run.session().state_paths();
    if (status.ok()) status = run.session().Initialize(ToyWeights);
    uint64_t t = 1;
    for (uint64_t step = 1; status.ok() && step <= kSteps; ++step) {
      const auto result = TrainStep(run, step, t);
      status = result.status();
      if (!status.ok()) break;
      crash.reported = crash.begun;
      if (!result->skipped) ++t;
      crash.begun = step;
      if (with_caller) {
        BeginCommitWithCaller(run, step);
      } else {
        BeginCommit(run, step, t - 1);
      }
    }
    if (status.ok()) status = run.session().FinishCommit();
    if (status.ok()) crash.reported = crash.begun;
    crash.crashed = !status.ok();
    return crash;
  }

  /// Whether there was a crash. If a commit was reported before, training resumes from that one or
  /// from the one that was under way, to the states of `whole`.
  bool CrashAndResume(const aio::FaultPlan& plan, const Outcome& whole, size_t* resumed,
                      bool with_caller = false) {
    EngineOptions options =
        Options({.name = "nvme", .tile_elements = 4096, .smallest_host = false});
    options.config.aio.faults = plan;
    const Crash crash = TrainUntilCrash(options, with_caller);
    if (crash.reported == 0) return crash.crashed;  // there is nothing to resume from
    options.config.aio.faults.reset();
    options.adopt = crash.paths;
    const std::string name =
        fmt::format("block {}, sync {}, seed {}", plan.crash_at_block.value_or(0),
                    plan.crash_at_sync.value_or(0), plan.seed);
    if (with_caller) {
      const auto state = CommittedState::Open(crash.paths);
      EXPECT_TRUE(state.ok()) << name;
      if (state.ok()) ExpectWholeWithCaller(**state, name);
    }
    auto run = std::make_unique<ToyRun>(options, 64_MiB);
    EXPECT_TRUE(run->created().ok()) << name << ": " << run->created().error().message;
    if (!run->created().ok()) return crash.crashed;
    const Result<TrainState> from = run->session().Adopt();
    EXPECT_TRUE(from.ok()) << name << ": " << from.error().message;
    if (!from.ok()) return crash.crashed;
    EXPECT_THAT(from->step, AnyOf(crash.reported, crash.begun)) << name;
    Outcome outcome;
    GoOn(std::move(run), *from, &outcome);
    outcome.norms = whole.norms;
    ExpectSameBits(outcome, whole, name);
    ++*resumed;
    return crash.crashed;
  }

  /// The norms after the commit, and the states at the end, of a run without an interruption.
  Outcome Whole(DType dtype) {
    Outcome whole = TrainAndRead(
        {.name = "whole", .dtype = dtype, .parameters = Tier::kDevice, .optimizer = Tier::kDevice});
    whole.norms.erase(whole.norms.begin(), whole.norms.begin() + kCommitAt - 1);
    return whole;
  }
};

TEST_F(ResumeTest, AnyHomeResumesInTheFilesOfAnyOtherWithTheSameBits) {
  const Placement homes[] = {
      {.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
      {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
      {.name = "parameters on the host", .parameters = Tier::kHost},
      {.name = "optimizer on the host", .optimizer = Tier::kHost},
      {.name = "nvme"},
      {.name = "split", .queue_depth = 1, .tier_split = true, .more_host = 1_MiB},
  };
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Outcome whole = Whole(dtype);
    for (Placement before : homes) {
      for (Placement after : homes) {
        if (tried++ % kTrainingStride != 0) continue;
        before.dtype = after.dtype = dtype;
        const std::string name = before.name + " to " + after.name;
        ExpectSameBits(Adopt(after, TrainToCommit(before)), whole, name);
      }
    }
  }
}

TEST_F(ResumeTest, ARuleOfTwoPassesResumesInAnyHomeWithTheSameBits) {
  Placement nvme{.name = "nvme", .rule = {.hyper = kernels::LambHyperparameters{}}};
  Placement host = nvme;
  host.name = "host";
  host.parameters = host.optimizer = Tier::kHost;
  Placement device = nvme;
  device.name = "device";
  device.parameters = device.optimizer = Tier::kDevice;
  const Outcome whole = TrainAndRead(nvme, kCommitAt);
  for (const Placement& placement : {nvme, host, device}) {
    Outcome rest = Adopt(placement, TrainToCommit(nvme));
    rest.norms.insert(rest.norms.begin(), whole.norms.begin(),
                      whole.norms.end() - static_cast<std::ptrdiff_t>(rest.norms.size()));
    ExpectSameBits(rest, whole, placement.name);
  }
}

TEST_F(ResumeTest, SeveralDrivesAndOneSlotResumeInPlace) {
  const Outcome whole = Whole(DType::kBFloat16);
  for (const Placement& placement : {Placement{.name = "two drives", .drives = {1, 3}},
                                     Placement{.name = "one slot", .durable = false},
                                     Placement{.name = "one slot at the host",
                                     .parameters = Tier::kHost,
                                     .optimizer = Tier::kHost,
                                     .durable = false}}) {
    ExpectSameBits(Adopt(placement, TrainToCommit(placement)), whole, placement.name);
  }
}

TEST_F(ResumeTest, AStateMovesIntoOtherTilesSlotsAndDrives) {
  const Placement shapes[] = {
      {.name = "4096", .tile_elements = 4096},
      {.name = "large", .tile_elements = 1 << 20},
      {.name = "one slot", .tile_elements = 12288, .durable = false},
      {.name = "two drives", .drives = {2, 1}},
  };
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Outcome whole = Whole(dtype);
    for (Placement before : shapes) {
      for (Placement after : shapes) {
        if (tried++ % kTrainingStride != 0) continue;
        before.dtype = after.dtype = dtype;
        const auto old = CommittedState::Open(TrainToCommit(before), /*exclusive=*/true);
        ASSERT_TRUE(old.ok()) << old.error().message;
        auto run = std::make_unique<ToyRun>(Options(after), 64_MiB);
        ASSERT_TRUE(run->created().ok()) << run->created().error().message;
        const auto fill = FillFromState(run->session().layout(), **old);
        ASSERT_TRUE(fill.ok()) << fill.error().message;
        const Status filled = run->session().Fill(*fill, (*old)->train_state());
        ASSERT_TRUE(filled.ok()) << filled.error().message;
        Outcome outcome;
        GoOn(std::move(run), (*old)->train_state(), &outcome);
        ExpectSameBits(outcome, whole, before.name + " to " + after.name);
      }
    }
  }
}

TEST_F(ResumeTest, ACrashAtAnyBlockThatLosesTearsAndReordersWhatWasNotSyncedCostsNoBit) {
  const Outcome whole = TrainAndRead({.name = "whole", .tile_elements = 4096});
  size_t resumed = 0;
  bool crashed = true;
  for (uint64_t block = 40; crashed; block += 97) {
    const aio::FaultPlan plan{
        .seed = block, .reorder = true, .lose_unsynced = true, .crash_at_block = block};
    crashed = CrashAndResume(plan, whole, &resumed);
  }
  EXPECT_GE(resumed, 4);
}

// Between the record and the sync behind it: where a record could be durable before its tiles.
TEST_F(ResumeTest, ACrashAtAnySyncCostsNoBit) {
  const Outcome whole = TrainAndRead({.name = "whole", .tile_elements = 4096});
  size_t resumed = 0;
  bool crashed = true;
  for (uint64_t sync = 0; crashed; ++sync) {
    const aio::FaultPlan plan{.seed = sync, .lose_unsynced = true, .crash_at_sync = sync};
    crashed = CrashAndResume(plan, whole, &resumed);
  }
  EXPECT_GE(resumed, 10);
}

// Where the record could be durable before the caller's file that it names.
TEST_F(ResumeTest, ACrashAtAnySyncCostsNoCallersFile) {
  const Outcome whole = TrainAndRead({.name = "whole", .tile_elements = 4096});
  size_t resumed = 0;
  bool crashed = true;
  for (uint64_t sync = 0; crashed; ++sync) {
    const aio::FaultPlan plan{.seed = sync, .lose_unsynced = true, .crash_at_sync = sync};
    crashed = CrashAndResume(plan, whole, &resumed, /*with_caller=*/true);
  }
  EXPECT_GE(resumed, 15);
}

TEST_F(ResumeTest, DamageIsNamedBeforeItIsTrainedOn) {
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    const Placement placement{.name = "damaged", .parameters = home, .optimizer = home};
    const std::vector<std::string> paths = TrainToCommit(placement);
    const uint64_t size = std::filesystem::file_size(paths[0]);
    size_t found = 0;
    // Places in both slots: only one of them is committed.
    for (const uint64_t at : {size / 5 * 2, size / 5 * 4}) {
      FlipBit(paths[0], at);
      EngineOptions options = Options(placement);
      options.adopt = paths;
      {
        ToyRun run(options, 64_MiB);
        ASSERT_TRUE(run.created().ok()) << run.created().error().message;
        Status status = run.session().Adopt().status();
        if (status.ok()) status = TrainStep(run, kCommitAt + 1, kCommitAt).status();
        if (status.ok()) status = run.session().Drain();
        if (!status.ok()) {
          ++found;
          EXPECT_EQ(status.error().code, ErrorCode::kCorruption);
          EXPECT_THAT(status.error().message, HasSubstr(paths[0]));
          EXPECT_THAT(status.error().message, HasSubstr("checksum of tile "));
        }
      }
      FlipBit(paths[0], at);
    }
    EXPECT_EQ(found, 1) << ToString(home);
  }
}

TEST_F(ResumeTest, FilesOfOtherTilesAreRefusedAndLeftAlone) {
  const std::vector<std::string> paths = TrainToCommit({.name = "before", .tile_elements = 4096});
  EngineOptions options = Options({.name = "after", .tile_elements = 8192});
  options.adopt = paths;
  {
    const ToyRun run(options, 64_MiB);
    ASSERT_FALSE(run.created().ok());
    EXPECT_EQ(run.created().error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(run.created().error().message, HasSubstr(paths[0]));
  }
  const auto state = CommittedState::Open(paths);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_THAT(Damages(**state), IsEmpty());
}

TEST_F(ResumeTest, WithOneSlotTheCommitIsGoneOnceTrainingContinues) {
  const Placement placement{.name = "one slot", .durable = false};
  const std::vector<std::string> paths = TrainToCommit(placement);
  {
    EngineOptions options = Options(placement);
    options.adopt = paths;
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Adopt().ok());
    ASSERT_TRUE(TrainStep(run, kCommitAt + 1, kCommitAt).ok());
    ASSERT_TRUE(run.session().Drain().ok());
  }
  const auto state = CommittedState::Open(paths);
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace penstock::zero
