// Runs of the C interface: what belongs to a run stays, and nothing else (docs/run_format.md).
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>

#include "tests/front/c_run.h"
#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Of a configuration whose engine cannot continue in the files of the others.
const json kOneSlot{{"penstock", {{"durable", false}}}};

std::set<std::string> StatesIn(const std::string& folder) {
  std::set<std::string> names = FilesIn(folder);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".state"); });
  return names;
}

/// Has run.json say what it said before the first commit, which the state has all the same: as a
/// kill leaves it between the two.
void LeaveUnnamed(const std::string& folder) {
  json info = RunJson(folder);
  info["leftovers"] = json::array({std::exchange(info["state"], nullptr)});
  std::ofstream(folder + "/run.json") << info;
}

class CRunTest : public ::testing::Test {
 protected:
  CRunTest() { fs::create_directory(drive_); }

  json Named() const { return {{"run", run_}}; }
  json OnDrive() const { return {{"run", run_}, {"nvme_path", {drive_}}}; }
  /// Trains two steps in a new run, commits each, and closes it.
  void TrainTwoSteps(const json& options, const Home& home) const {
    const CRun run(options);
    ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
    CTraining training(run.Create(home, drive_), "bf16");
    ASSERT_EQ(training.engine().code, PENSTOCK_OK) << training.engine().error;
    training.Fill();
    for (const int step : {1, 2}) {
      training.Step();
      ASSERT_EQ(CommitWith(training.engine().handle, {{"step", step}}), PENSTOCK_OK)
          << penstock_error();
    }
  }
  /// What the third step of such a run makes of it.
  static Trained Third(CTraining training) {
    Trained trained;
    trained.norms.push_back(training.Step().grad_norm);
    training.ReadInto(&trained);
    return trained;
  }
  Trained Uninterrupted(const Home& home) const {
    const TempFolder other;
    CTraining training(home, other.Path(), "bf16");
    training.Fill();
    for (int step = 0; step < 2; ++step) training.Step();
    return Third(std::move(training));
  }

  const TempFolder temp_;
  const std::string root_ = fs::canonical(temp_.Path());
  const std::string run_ = root_ + "/run";
  const std::string drive_ = root_ + "/drive";
};

TEST_F(CRunTest, ARunIsResumedFromItsLastCommitWithTheSameBits) {
  for (const Home& home : {kHomes[1], kHomes[3], kHomes[4]}) {
    const bool nvme = home.optimizer == "nvme";
    const json options = nvme ? OnDrive() : Named();
    TrainTwoSteps(options, home);
    const json info = RunJson(run_);
    EXPECT_EQ(info["version"], 3);
    EXPECT_EQ(info["kind"], "optimizer");
    EXPECT_THAT(info["leftovers"], IsEmpty());
    const auto states = StatesIn(nvme ? drive_ : run_);
    EXPECT_EQ(states.size(), 1U);
    {
      const CRun run(options);
      ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
      CEngine engine = run.Create(home, drive_);
      ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
      EXPECT_EQ(engine.Text(penstock_continued), json({{"step", 2}}));
      EXPECT_FALSE(engine.Describe()["moved"]);
      EXPECT_TRUE(Third(CTraining(std::move(engine), "bf16")) == Uninterrupted(home)) << home.name;
    }
    EXPECT_EQ(StatesIn(nvme ? drive_ : run_), states);  // the step was not committed
    fs::remove_all(run_);
    fs::remove_all(drive_);
    fs::create_directory(drive_);
  }
}

TEST_F(CRunTest, ATextThatIsTooLongForTheRecordGoesWhereTheStateGoes) {
  const auto files = [&] {
    std::set<std::string> names = FilesIn(drive_);
    std::erase_if(names, [](const auto& name) { return name.find(".caller-") == name.npos; });
    return names.size();
  };
  // Longer with each commit, and another one each time.
  const auto caller = [](int step) {
    return json{{"step", step},
                {"text", std::string(100000 * step, static_cast<char>('a' + step))}};
  };
  std::string snapshot;
  {
    const CRun run(OnDrive());
    ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
    CTraining training(run.Create(kHomes[3], drive_), "bf16");
    training.Fill();
    penstock_engine* const engine = training.engine().handle;
    for (const int step : {1, 2, 3}) {
      training.Step();
      ASSERT_EQ(CommitWith(engine, caller(step)), PENSTOCK_OK) << penstock_error();
    }
    EXPECT_EQ(files(), 2U);
    char* folder = nullptr;
    ASSERT_EQ(penstock_snapshot(engine, "kept", &folder), PENSTOCK_OK) << penstock_error();
    snapshot = folder;
    penstock_free(folder);
    EXPECT_EQ(files(), 3U);
    training.Step();
    ASSERT_EQ(CommitWith(engine, {{"step", 4}}), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(files(), 2U) << "the commit before keeps its own, and the newest has none";
  }
  // What it resumes from, in which files, and how many callers' files there are then.
  struct Case {
    json options;
    json changes;
    int step;
    size_t files;
  };
  const json from{{"snapshot", snapshot}};
  for (const Case& tried : {Case{json::object(), json::object(), 4, 2},  // in place
                            Case{from, json::object(), 3, 2},            // the snapshot is moved
                            Case{json::object(), kOneSlot, 3, 2},        // and moved again
                            Case{json::object(), kOneSlot, 3, 2}}) {
    const CRun run(OnDrive());
    ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
    CEngine engine = run.Create(kHomes[3], drive_, tried.options, tried.changes);
    ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
    const json expected = tried.step == 4 ? json{{"step", 4}} : caller(tried.step);
    EXPECT_EQ(engine.Text(penstock_continued), expected);
    EXPECT_EQ(files(), tried.files);
    EXPECT_THAT(run.Describe()["notices"], IsEmpty());
  }
}

TEST_F(CRunTest, TheCallersFilesOfAStateThatIsGoneAreRemovedWithItsEntry) {
  TrainTwoSteps(OnDrive(), kHomes[3]);
  const std::string uuid(32, '7');
  json info = RunJson(run_);
  const std::string state = fmt::format("{}/penstock-{}.state", drive_, uuid);
  info["leftovers"] =
      json::array({{{"uuid", uuid}, {"ranks", json::array({{{"host", ""}, {"paths", {state}}}})}}});
  std::ofstream(run_ + "/run.json") << info;
  const std::set<std::string> before = FilesIn(drive_);
  for (const char* name : {".caller-0", ".caller-1", ".caller-0.tmp"}) {
    std::ofstream(fmt::format("{}/penstock-{}{}", drive_, uuid, name)) << "{}";
  }
  CRun run(OnDrive());
  ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
  EXPECT_EQ(FilesIn(drive_), before);
  EXPECT_THAT(RunJson(run_)["leftovers"], IsEmpty());
}

TEST_F(CRunTest, WhatAKilledProcessLeftWithoutACommitIsRemovedByTheNextStart) {
  InKilledProcess([&] {
    const auto* const run = new CRun(OnDrive());
    auto* const training = new CTraining(run->Create(kHomes[3], drive_), "bf16");
    training->Fill();
    training->Step();
  });
  const auto left = StatesIn(drive_);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(RunJson(run_)["leftovers"].size(), 1U);
  CRun run(OnDrive());
  EXPECT_EQ(run.code, PENSTOCK_OK) << run.error;
  EXPECT_THAT(FilesIn(drive_), IsEmpty());
  EXPECT_EQ(run.Close(), PENSTOCK_OK);
  EXPECT_TRUE(fs::exists(run_));  // which this process has not made
  EXPECT_THAT(FilesIn(run_), IsEmpty());
}

TEST_F(CRunTest, ACommitStaysAlthoughNothingWasClosed) {
  InKilledProcess([&] {
    const auto* const run = new CRun(OnDrive());
    auto* const training = new CTraining(run->Create(kHomes[3], drive_), "bf16");
    training->Fill();
    training->Step();
    // Only the end of the next step waits for the commit.
    EXPECT_EQ(penstock_begin_commit(training->engine().handle, "{}"), PENSTOCK_OK);
    training->Step();
  });
  const CRun run(OnDrive());
  const CEngine engine = run.Create(kHomes[3], drive_);
  ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
  EXPECT_EQ(engine.Describe()["step"], 1);
}

TEST_F(CRunTest, AFirstCommitThatNobodyWaitedForIsNotRemovedByAnOrderlyEnd) {
  CRun run(OnDrive());
  {
    CTraining training(run.Create(kHomes[3], drive_), "bf16");
    training.Fill();
    EXPECT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
  }
  EXPECT_EQ(run.Close(), PENSTOCK_OK) << penstock_error();
  ASSERT_TRUE(fs::exists(run_));
  EXPECT_FALSE(RunJson(run_)["state"].is_null());
  const CRun again(OnDrive());
  EXPECT_EQ(again.Create(kHomes[3], drive_).Describe()["moved"], false);
}

TEST_F(CRunTest, WhatHasWaitedForAFirstCommitHasRunJsonNameIt) {
  const auto named = [&](const std::function<int(CTraining&)>& call) {
    const CRun run(OnDrive());
    CTraining training(run.Create(kHomes[3], drive_), "bf16");
    training.Fill();
    EXPECT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
    EXPECT_EQ(call(training), PENSTOCK_OK) << penstock_error();
    return !RunJson(run_)["state"].is_null();
  };
  EXPECT_TRUE(named([](CTraining& training) {
    training.ForwardAndBackward(0);
    double norm = 0;
    int finite = 0;
    return penstock_norm(training.engine().handle, &norm, &finite);
  }));
  fs::remove_all(run_);
  fs::remove_all(drive_);
  fs::create_directory(drive_);
  EXPECT_TRUE(named([](CTraining& training) {
    int taken_back = 0;
    uint64_t step = 0;
    return penstock_take_back_commit(training.engine().handle, &taken_back, &step);
  }));
}

TEST_F(CRunTest, ARunWithoutACommitIsRemovedWhenItIsClosed) {
  for (const json& options : {Named(), OnDrive(), json{{"nvme_path", {drive_}}}}) {
    CRun run(options);
    ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
    const std::string folder = run.folder();
    {
      CTraining training(run.Create(kHomes[options.contains("nvme_path") ? 3 : 1], drive_), "bf16");
      training.Fill();
    }
    EXPECT_EQ(run.Close(), PENSTOCK_OK);
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_THAT(FilesIn(drive_), IsEmpty());
  }
}

TEST_F(CRunTest, ATemporaryRunStaysWithItsCommitAndIsRemovedWithoutOnceItsProcessIsGone) {
  const json options{{"nvme_path", {drive_}}};
  InKilledProcess([&] { new CRun(options); });
  TrainTwoSteps(options, kHomes[3]);
  const auto kept = FilesIn(drive_);
  ASSERT_EQ(kept.size(), 1U);
  const std::string folder = drive_ + "/" + *kept.begin();
  EXPECT_TRUE(RunJson(folder)["temporary"]);
  EXPECT_EQ(StatesIn(folder).size(), 1U);
  const CRun run(json{{"run", folder}, {"nvme_path", {drive_}}});
  EXPECT_EQ(run.Create(kHomes[3], drive_).Describe()["moved"], false);
}

TEST_F(CRunTest, ATemporaryRunWhoseCommitRunJsonDoesNotNameIsNoAbandonedOne) {
  const json options{{"nvme_path", {drive_}}};
  TrainTwoSteps(options, kHomes[3]);
  const std::string folder = drive_ + "/" + *FilesIn(drive_).begin();
  LeaveUnnamed(folder);
  EXPECT_EQ(CRun(options).code, PENSTOCK_OK);
  ASSERT_EQ(StatesIn(folder).size(), 1U);
  const CRun run(json{{"run", folder}, {"nvme_path", {drive_}}});
  EXPECT_EQ(run.Create(kHomes[3], drive_).Describe()["step"], 2);
}

TEST_F(CRunTest, AFirstCommitThatRunJsonDoesNotNameStaysWhileOneOfItsDrivesIsAway) {
  const std::string second = root_ + "/second";
  const std::string away = root_ + "/away";
  for (const bool with_second : {true, false}) {
    fs::create_directory(second);
    json options = OnDrive();
    if (with_second) options["nvme_path"].push_back(second);
    const json paths = with_second ? json{drive_, second} : json(drive_);
    const json config{{"zero_optimization",
                       {{"offload_optimizer", {{"nvme_path", paths}}},
                        {"offload_param", {{"nvme_path", paths}}}}}};
    {
      const CRun run(options);
      CTraining training(run.Create(kHomes[3], drive_, json::object(), config), "bf16");
      ASSERT_EQ(training.engine().code, PENSTOCK_OK) << training.engine().error;
      training.Fill();
      ASSERT_EQ(CommitWith(training.engine().handle, json::object()), PENSTOCK_OK)
          << penstock_error();
    }
    LeaveUnnamed(run_);
    const auto there = StatesIn(second);
    fs::rename(drive_, away);
    fs::create_directory(drive_);
    {
      const CRun run(options);
      EXPECT_EQ(run.code, with_second ? PENSTOCK_CORRUPTION : PENSTOCK_OK);
      const std::string said = with_second ? run.error : run.Describe()["notices"].dump();
      EXPECT_THAT(said, AllOf(HasSubstr(drive_ + "/penstock-"), HasSubstr("mount")));
    }
    EXPECT_EQ(StatesIn(second), there);
    fs::remove(drive_);
    fs::rename(away, drive_);
    const CRun run(options);
    EXPECT_FALSE(run.Describe()["state"].is_null()) << run.error;
    for (const std::string& used : {drive_, second, run_}) fs::remove_all(used);
    fs::create_directory(drive_);
  }
}

TEST_F(CRunTest, ARunIsOpenOnceAndAForkedChildDoesNotKeepItOpen) {
  CRun run(Named());
  const CRun again(Named());
  EXPECT_EQ(again.code, PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(again.error, HasSubstr("is open in this process already"));
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipes[1]);
    const bool refused = penstock_close_run(run.handle) == PENSTOCK_UNAVAILABLE;
    char byte = 0;
    static_cast<void>(::read(pipes[0], &byte, 1));
    ::_exit(refused ? 0 : 1);
  }
  EXPECT_EQ(run.Close(), PENSTOCK_OK);
  EXPECT_EQ(CRun(Named()).code, PENSTOCK_OK);
  ::close(pipes[1]);
  ::close(pipes[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CRunTest, AChildOfAProcessThatWasKilledKeepsNothingOfItsRunLocked) {
  for (const Home& home : {kHomes[1], kHomes[3]}) {
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    InKilledProcess([&] {
      const CRun run(Named());
      CTraining training(run.Create(home, drive_), "bf16");
      training.Fill();
      training.Step();
      ASSERT_EQ(CommitWith(training.engine().handle, {{"step", 1}}), PENSTOCK_OK)
          << penstock_error();
      if (::fork() == 0) {
        ::close(pipes[1]);
        char byte = 0;
        static_cast<void>(!::read(pipes[0], &byte, 1));
        ::_exit(0);
      }
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    });
    {
      const CRun run(Named());
      ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
      const CEngine again = run.Create(home, drive_);
      EXPECT_EQ(again.code, PENSTOCK_OK) << again.error;
    }
    ::close(pipes[0]);
    ::close(pipes[1]);
    fs::remove_all(run_);
    fs::remove_all(drive_);
    fs::create_directory(drive_);
  }
}

TEST_F(CRunTest, WhatAKillLeavesOfASnapshotToAPathIsNamedAndGoesWhenTheRunIsResumed) {
  const std::string kept = root_ + "/kept/first";
  const pid_t child = ::fork();
  if (child == 0) {
    const CRun run(Named());
    CTraining training(run.Create(kHomes[3], drive_), "bf16");
    training.Fill();
    training.Step();
    if (CommitWith(training.engine().handle, json::object()) != PENSTOCK_OK) ::_exit(1);
    // The first write of a state kills it; those of run.json do not.
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    const rlimit short_files{.rlim_cur = 4000, .rlim_max = 4000};
    if (::setrlimit(RLIMIT_CORE, &none) != 0) ::_exit(1);
    if (::setrlimit(RLIMIT_FSIZE, &short_files) != 0) ::_exit(1);
    char* folder = nullptr;
    static_cast<void>(penstock_snapshot(training.engine().handle, kept.c_str(), &folder));
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
  EXPECT_EQ(FilesIn(root_ + "/kept"), std::set<std::string>{".first.unfinished"});
  EXPECT_EQ(RunJson(run_)["copying"], kept);
  { EXPECT_EQ(CRun(Named()).code, PENSTOCK_OK); }
  EXPECT_TRUE(FilesIn(root_ + "/kept").empty());
  EXPECT_FALSE(RunJson(run_).contains("copying"));
}

TEST_F(CRunTest, TheEndOfAProcessClosesRunsWhicheverWayEnginesAndRunsWereBegun) {
  for (const bool engine_first : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      static const CTraining* plain = nullptr;  // nothing is closed, and nothing leaks
      if (engine_first) plain = new CTraining(kHomes[1], root_, "bf16");
      static const auto* const run = new CRun(Named());
      static const auto* const engine = new CEngine(run->Create(kHomes[1], drive_));
      if (!engine_first) plain = new CTraining(kHomes[1], root_, "bf16");
      std::exit(plain == nullptr ? 1 : engine->code);  // NOLINT(concurrency-mt-unsafe)
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(FilesIn(root_), std::set<std::string>{"drive"}) << engine_first;
  }
}

TEST_F(CRunTest, AChildOfAForkOpensARunThatItsParentHasClosed) {
  TrainTwoSteps(Named(), kHomes[1]);
  CRun run(Named());
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipes[1]);
    char byte = 0;
    static_cast<void>(::read(pipes[0], &byte, 1));
    ::_exit(CRun(Named()).code);
  }
  EXPECT_EQ(run.Close(), PENSTOCK_OK);
  ::close(pipes[1]);
  ::close(pipes[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CRunTest, RunsOfOtherKindsAndFoldersThatAreNoRunsAreRefusedAndStayAsTheyAre) {
  TrainTwoSteps(OnDrive(), kHomes[3]);
  const CRun module(json{{"run", run_}, {"kind", "module"}});
  EXPECT_EQ(module.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(module.error, HasSubstr("is of kind optimizer, and module was asked for"));
  const std::string train = root_ + "/train";
  temp_.Write("train/run.json",
              R"({"version": 1, "program": "0.1.0", "run_uuid": "aa", "state_uuid": "aa",)"
              R"( "state_paths": ["a.state"], "leftovers": [], "seed": 1, "device": "cpu",)"
              R"( "sequence_length": 1, "data": {"path": "/d", "order": "shuffle"}, "model": ""})");
  const CRun other(json{{"run", train}});
  EXPECT_EQ(other.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(other.error, HasSubstr("is a run of penstock train, which resumes it"));
  EXPECT_EQ(FilesIn(train), std::set<std::string>{"run.json"});
  temp_.Write("states/penstock-0123.state", "x");
  const CRun foreign(json{{"run", root_ + "/states"}});
  EXPECT_EQ(foreign.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(foreign.error, HasSubstr("has penstock-0123.state and no run.json"));
  EXPECT_EQ(FilesIn(root_ + "/states"), std::set<std::string>{"penstock-0123.state"});
}

TEST_F(CRunTest, ACommitOfAnotherTrainingIsRefusedByWhatDiffersAndNothingIsWritten) {
  TrainTwoSteps(OnDrive(), kHomes[3]);
  const CRun run(OnDrive());
  const auto before = FilesIn(drive_);
  json identity = kIdentity;
  identity["rule"] = "Lion";
  for (const Home& home : {kHomes[3], kHomes[2]}) {
    const CEngine engine = run.Create(home, drive_, {{"identity", identity}});
    EXPECT_EQ(engine.code, PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(engine.error, AllOf(HasSubstr("is of another training"),
                                    HasSubstr(R"(its rule is "AdamW", and "Lion" was asked for)")));
  }
  EXPECT_EQ(FilesIn(drive_), before);
  EXPECT_EQ(run.Create(kHomes[3], drive_).code, PENSTOCK_OK);
}

TEST_F(CRunTest, AStateThatIsMovedReplacesTheOldOneInRunJson) {
  TrainTwoSteps(OnDrive(), kHomes[3]);
  const auto before = StatesIn(drive_);
  const CRun run(OnDrive());
  const CEngine engine = run.Create(kHomes[3], drive_, json::object(), kOneSlot);
  ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
  EXPECT_TRUE(engine.Describe()["moved"]);
  const auto after = StatesIn(drive_);
  EXPECT_EQ(after.size(), 1U);
  EXPECT_NE(after, before);
  EXPECT_EQ(run.Describe()["state"]["uuid"], engine.Describe()["uuid"]);
  EXPECT_THAT(RunJson(run_)["leftovers"], IsEmpty());
}

TEST_F(CRunTest, AMovedRunResumesInItsFilesAndACopyInItsOwn) {
  TrainTwoSteps(OnDrive(), kHomes[3]);
  const Trained expected = Uninterrupted(kHomes[3]);
  const std::string moved = root_ + "/moved";
  fs::rename(run_, moved);
  const json options{{"run", moved}, {"nvme_path", {drive_}}};
  json state;
  {
    const CRun run(options);
    ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
    EXPECT_EQ(run.Create(kHomes[3], drive_).Describe()["moved"], false);
    state = run.Describe()["state"];
  }
  EXPECT_EQ(RunJson(moved)["place"], moved);
  std::ifstream owner(drive_ + "/" + fs::path(*StatesIn(drive_).begin()).stem().string() + ".run");
  EXPECT_EQ(json::parse(owner), moved);
  fs::copy(moved, root_ + "/copy", fs::copy_options::recursive);
  {
    const CRun copy(json{{"run", root_ + "/copy"}, {"nvme_path", {drive_}}});
    ASSERT_EQ(copy.code, PENSTOCK_OK) << copy.error;
    CEngine engine = copy.Create(kHomes[3], drive_);
    ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
    EXPECT_TRUE(engine.Describe()["moved"]);
    EXPECT_NE(RunJson(root_ + "/copy")["run_uuid"], RunJson(moved)["run_uuid"]);
    EXPECT_TRUE(Third(CTraining(std::move(engine), "bf16")) == expected);
  }
  EXPECT_EQ(StatesIn(drive_).size(), 2U);
  const CRun run(options);
  EXPECT_EQ(run.Describe()["state"], state);
  EXPECT_TRUE(Third(CTraining(run.Create(kHomes[3], drive_), "bf16")) == expected);
}

/// Has this process at most so many more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit now = before_;
    const int next = ::dup(0);
    ::close(next);
    now.rlim_cur = static_cast<rlim_t>(next) + more;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(CRunTest, ARunThatLacksDescriptorsOnTheWayLeavesNoFolder) {
  int code = PENSTOCK_INTERNAL;
  for (rlim_t more = 0; code != PENSTOCK_OK && more < 100; ++more) {
    {
      const FewDescriptors few(more);
      code = CRun(json{{"run", root_ + "/around/run"}}).code;
    }
    EXPECT_TRUE(code == PENSTOCK_OK || !fs::exists(root_ + "/around")) << more;
  }
  EXPECT_EQ(code, PENSTOCK_OK);
}

TEST_F(CRunTest, ACommitFailsOnceTheFolderIsGoneAndTheNextStartNamesTheState) {
  {
    const CRun run(OnDrive());
    CTraining training(run.Create(kHomes[3], drive_), "bf16");
    training.Fill();
    training.Step();
    ASSERT_EQ(CommitWith(training.engine().handle, json::object()), PENSTOCK_OK)
        << penstock_error();
    fs::rename(run_, root_ + "/away");
    training.Step();
    EXPECT_EQ(CommitWith(training.engine().handle, json::object()), PENSTOCK_NOT_FOUND);
    EXPECT_THAT(penstock_error(), AllOf(HasSubstr(run_), HasSubstr("removed or moved away"),
                                        HasSubstr("step 2 is committed in")));
  }
  const auto states = StatesIn(drive_);
  ASSERT_EQ(states.size(), 1U);
  const CRun again(OnDrive());
  EXPECT_EQ(again.code, PENSTOCK_NOT_FOUND);
  EXPECT_THAT(again.error, AllOf(HasSubstr(run_), HasSubstr(*states.begin()),
                                 HasSubstr("resume it at its new place")));
  EXPECT_FALSE(fs::exists(run_));
  const CRun away(json{{"run", root_ + "/away"}, {"nvme_path", {drive_}}});
  EXPECT_EQ(away.Create(kHomes[3], drive_).Describe()["step"], 2);
}

TEST_F(CRunTest, ARunThatIsLostBeforeItsFirstCommitIsBegunAnew) {
  InKilledProcess([&] {
    const auto* const run = new CRun(OnDrive());
    (new CTraining(run->Create(kHomes[3], drive_), "bf16"))->Fill();
  });
  fs::remove_all(run_);
  ASSERT_EQ(StatesIn(drive_).size(), 1U);
  const CRun again(OnDrive());
  EXPECT_EQ(again.code, PENSTOCK_OK) << again.error;
}

TEST_F(CRunTest, ASnapshotIsResumedAndStaysAsItIs) {
  for (const std::string& name : {std::string("kept"), root_ + "/elsewhere/kept"}) {
    for (const Home& home : {kHomes[1], kHomes[3]}) {
      const json options = home.optimizer == "nvme" ? OnDrive() : Named();
      std::string snapshot;
      {
        const CRun run(options);
        CTraining training(run.Create(home, drive_), "bf16");
        training.Fill();
        for (int step = 0; step < 2; ++step) training.Step();
        penstock_engine* const engine = training.engine().handle;
        char* folder = nullptr;
        EXPECT_EQ(penstock_snapshot(engine, name.c_str(), &folder), PENSTOCK_NOT_FOUND);
        ASSERT_EQ(CommitWith(engine, {{"at", "the snapshot"}}), PENSTOCK_OK) << penstock_error();
        ASSERT_EQ(penstock_snapshot(engine, name.c_str(), &folder), PENSTOCK_OK)
            << penstock_error();
        snapshot = folder;
        penstock_free(folder);
        EXPECT_EQ(penstock_snapshot(engine, name.c_str(), &folder), PENSTOCK_INVALID_ARGUMENT);
        EXPECT_THAT(penstock_error(), HasSubstr("already"));
        training.Step();
        ASSERT_EQ(CommitWith(engine, json::object()), PENSTOCK_OK) << penstock_error();
        EXPECT_EQ(run.Describe()["snapshots"],
                  name == "kept" ? json::array({"kept"}) : json::array());
      }
      const CRun run(options);
      for (int time = 0; time < 2; ++time) {
        CEngine engine = run.Create(home, drive_, {{"snapshot", snapshot}});
        ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
        EXPECT_EQ(engine.Text(penstock_continued), json({{"at", "the snapshot"}}));
        EXPECT_TRUE(Third(CTraining(std::move(engine), "bf16")) == Uninterrupted(home));
      }
      char* text = nullptr;
      ASSERT_EQ(penstock_read_run(snapshot.c_str(), &text), PENSTOCK_OK) << penstock_error();
      const json said = json::parse(text);
      penstock_free(text);
      EXPECT_EQ(said["run_uuid"] == run.Describe()["run_uuid"], name == "kept");
      for (const std::string& used : {drive_, run_, root_ + "/elsewhere"}) fs::remove_all(used);
      fs::create_directory(drive_);
    }
  }
}

/// A run as the Python package wrote it before: version 1 (docs/run_format.md).
class OlderRun : public CRunTest {
 protected:
  OlderRun() {
    const std::string states = drive_ + "/penstock-9f0c3a5b7d112233";
    fs::create_directories(states);
    std::ofstream(states + "/run.name") << json{{"run", run_}};
    json state;
    {
      CTraining training(kHomes[3], drive_, "bf16", 1, {{"folders", {states}}});
      training.Fill();
      for (int step = 0; step < 2; ++step) training.Step();
      const json text{{"penstock_python", 1},      {"kind", "optimizer"},
                      {"identity", "sha"},         {"calls", 2},
                      {"groups", {{{"lr", 0.5}}}}, {"random", {{"r", 1}}},
                      {"attached", json::object()}};
      EXPECT_EQ(CommitWith(training.engine().handle, text), PENSTOCK_OK) << penstock_error();
      state = {{"uuid", training.description()["uuid"]},
               {"paths", training.description()["state_paths"]}};
    }
    temp_.Write("run/run.json", json{{"penstock_run", 1},
                                     {"id", "9f0c3a5b7d112233"},
                                     {"kind", "optimizer"},
                                     {"named", true},
                                     {"place", run_},
                                     {"folders", {states}},
                                     {"state", state}}
                                    .dump());
  }
};

TEST_F(OlderRun, ItIsResumedInPlaceWithTheSameBitsAndBecomesVersion3) {
  const CRun run(OnDrive());
  ASSERT_EQ(run.code, PENSTOCK_OK) << run.error;
  EXPECT_EQ(RunJson(run_)["version"], 3);
  const CEngine other = run.Create(kHomes[3], drive_, {{"older_identity", "another"}});
  EXPECT_EQ(other.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(other.error, HasSubstr("is of another training"));
  CEngine engine = run.Create(kHomes[3], drive_, {{"older_identity", "sha"}});
  ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
  EXPECT_FALSE(engine.Describe()["moved"]);
  const json caller = engine.Text(penstock_continued);
  EXPECT_EQ(caller["calls"], 2);
  EXPECT_EQ(caller["groups"][0]["lr"], 0.5);
  EXPECT_FALSE(caller.contains("identity"));
  EXPECT_TRUE(Third(CTraining(std::move(engine), "bf16")) == Uninterrupted(kHomes[3]));
}

TEST_F(OlderRun, ItsFolderOfStatesGoesWhenTheStateIsMoved) {
  const CRun run(OnDrive());
  const CEngine engine = run.Create(kHomes[3], drive_, {{"older_identity", "sha"}}, kOneSlot);
  ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
  EXPECT_TRUE(engine.Describe()["moved"]);
  EXPECT_EQ(StatesIn(drive_).size(), 1U);
  EXPECT_FALSE(fs::exists(drive_ + "/penstock-9f0c3a5b7d112233"));
}

}  // namespace
}  // namespace penstock::front
