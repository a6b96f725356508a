#include "train/doctor/run_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "run/run_folder.h"
#include "tests/temp_folder.h"
#include "tests/train/doctor/support.h"
#include "train/doctor/bug_report.h"
#include "train/doctor/config_checks.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A variable of the environment while a test runs; no thread runs beside it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    ::setenv(name, value, 1);  // NOLINT(concurrency-mt-unsafe)
  }
  ~Variable() { ::unsetenv(name_); }  // NOLINT(concurrency-mt-unsafe)
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

/// A run whose steps take a second each, half of which is computation.
class RunChecksTest : public testing::Test {
 protected:
  RunChecksTest() { WriteInfo({{.paths = {"/drive/a"}}}); }
  void WriteInfo(const std::vector<RankFiles>& ranks, RunKind kind = RunKind::kTrain) const {
    RunInfo info;
    info.kind = kind;
    info.program = "test";
    info.run_uuid = "00000000-0000-0000-0000-000000000001";
    info.place = temp_.Path("");
    info.state = StateFiles{.ranks = ranks, .uuid = info.run_uuid};
    info.training.model_json = "{}";
    info.training.data_path = "/data";
    info.training.data_order = "shuffle";
    info.training.device = "cpu";
    info.training.sequence_length = 4;
    PENSTOCK_CHECK(WriteRunInfo(temp_.Open(), info).ok());
  }
  void WriteRows(int count, bool skipped = false) const {
    std::string rows;
    for (int step = 1; step <= count; ++step) {
      const bool end = step == 1 || step == count;
      rows += fmt::format(
          R"({{"step":{},"skipped":{},"tokens":10,"step_s":1,"compute_s":{},"io_wait_s":0.5,)"
          R"("optimizer_s":0.1,"nvme_read_bytes":1000000000,"nvme_write_bytes":1000000000}})"
          "\n",
          step, skipped, end ? 0.0 : 0.5);
    }
    temp_.Write("metrics.jsonl", rows + "garbage\n{\"step\":1}\n{\"step\":");
  }
  void WriteSummary(const std::string& more) const {
    temp_.Write("summary.json",
                "{\"aio_engine\":\"io_uring\",\"device_name\":\"cpu (Fast)\"," + more + "}");
  }
  RunRecord Read() const { return ReadRunRecord(temp_.Path()).value(); }

  TempFolder temp_;
};

TEST_F(RunChecksTest, TheRowsAtBothEndsDoNotCountWhereThereAreFive) {
  WriteRows(5);
  EXPECT_EQ(Read().figures.rows, 3U);
  EXPECT_DOUBLE_EQ(Read().figures.compute_s, 1.5);
  EXPECT_EQ(Read().steps, 5U);
  WriteRows(4);
  EXPECT_EQ(Read().figures.rows, 4U);
}

TEST_F(RunChecksTest, ASimulatedDriveHasTheSpeedThatTheSummaryTells) {
  WriteRows(6);
  WriteSummary(R"("config":{"penstock":{"aio":{"simulate":{"read_gbps":2,"write_gbps":9,)"
               R"("shared":true,"latency_us":0}}}})");
  const RunRecord run = Read();
  ASSERT_TRUE(run.simulated);
  EXPECT_TRUE(run.simulated->shared);
  EXPECT_THAT(RunChecks(run, std::nullopt)[3], CheckIs(CheckState::kWarn, "io-bound"));
  EXPECT_FALSE(run.figures.host_share);
  WriteSummary(
      R"("host_memory_bytes":200,"host_peak_bytes":100,"optimizer_s":4,"update_overlap_s":1)");
  EXPECT_EQ(Read().figures.overlap, 0.25);
  EXPECT_EQ(Read().figures.host_share, 0.5);
  WriteSummary(R"("config":{"penstock":{"aio":{"simulate":null}}})");
  EXPECT_FALSE(Read().simulated);
}

TEST_F(RunChecksTest, ADriveThatIsMeasuredMovesBothDirectionsInTurn) {
  WriteRows(6);
  EXPECT_THAT(RunChecks(Read(), 4)[3], CheckIs(CheckState::kOk, "the drive needs 50 %"));
  EXPECT_THAT(RunChecks(Read(), 1)[3], CheckIs(CheckState::kWarn, "the drive needs 200 %"));
}

TEST_F(RunChecksTest, EachStateFileOfEachRankHasASimulatedDrive) {
  WriteRows(6);
  WriteSummary(R"("config":{"penstock":{"aio":{"simulate":{"read_gbps":2,"write_gbps":2}}}})");
  EXPECT_THAT(RunChecks(Read(), std::nullopt)[3],
              CheckIs(CheckState::kOk, "the drive needs 50 %; "));
  WriteInfo({{.paths = {"/drive/r0"}, .host = "a"}, {.paths = {"/drive/r1"}, .host = "b"}});
  EXPECT_THAT(RunChecks(Read(), std::nullopt)[3],
              CheckIs(CheckState::kWarn, "the drive needs 25 % (for 1/2 of the bytes: each of 2 "));
  WriteInfo({{.paths = {"/one/r0", "/two/r0"}, .host = "a"},
             {.paths = {"/one/r1", "/two/r1"}, .host = "a"}});
  EXPECT_THAT(RunChecks(Read(), 1000)[3],
              CheckIs(CheckState::kWarn, "the drive needs 12 % (for 1/4 of the bytes"));
}

TEST_F(RunChecksTest, DrivesOfThisHostMoveTheBytesOfItsRanks) {
  WriteRows(6);
  const std::string here = OwnHost();
  WriteInfo({{.paths = {"/drive/r0"}, .host = here}, {.paths = {"/drive/r1"}, .host = here}});
  EXPECT_THAT(RunChecks(Read(), 4)[3],
              CheckIs(CheckState::kOk, "needs 50 % (for the bytes of 2 of 2 ranks, those on "));
  WriteInfo({{.paths = {"/drive/r0"}, .host = "elsewhere"},
             {.paths = {"/drive/r1"}, .host = here},
             {.paths = {"/drive/r2"}, .host = "elsewhere"},
             {.paths = {"/drive/r3"}, .host = "elsewhere"}});
  EXPECT_THAT(
      RunChecks(Read(), 2)[3],
      CheckIs(CheckState::kWarn, "needs 25 % (for the bytes of 1 of 4 ranks, those on " + here));
}

TEST_F(RunChecksTest, ADriveThatIsNotKnownHasALineThatSaysHowToKnowIt) {
  WriteRows(6);
  EXPECT_THAT(RunChecks(Read(), std::nullopt)[3],
              CheckIs(CheckState::kWarn, "the lines of its folders say why"));
  WriteInfo({{.paths = {"/drive/r0"}, .host = "far"}, {.paths = {"/drive/r1"}, .host = "away"}});
  EXPECT_THAT(RunChecks(Read(), std::nullopt)[3],
              CheckIs(CheckState::kWarn, "its ranks ran on far: penstock doctor measures"));
  EXPECT_THAT(
      RunChecks(Read(), 4)[3],
      CheckIs(CheckState::kWarn, "needs 25 % (for the bytes of 1 of 2 ranks, those on far)"));
}

TEST(RunPlaceTest, RanksOfThisHostCountElseThoseOfRank0s) {
  const StateFiles state = {.ranks = {{.paths = {"/x/r0", "/y/r0"}, .host = "a"},
                                      {.paths = {"/x/r1", "/y/r1"}, .host = "b"},
                                      {.paths = {"/z/r2", "/y/r2"}, .host = "b"},
                                      {.paths = {"/x/r3", "/y/r3"}, .host = "c"}}};
  const RunPlace seen_by_b = PlaceOf(state, "b");
  EXPECT_EQ(seen_by_b.files, 8U);
  EXPECT_EQ(seen_by_b.ranks, 4U);
  EXPECT_EQ(seen_by_b.host, "b");
  EXPECT_EQ(seen_by_b.ranks_of_host, 2U);
  EXPECT_THAT(seen_by_b.folders, ElementsAre("/x", "/y", "/z"));
  const RunPlace seen_by_d = PlaceOf(state, "d");
  EXPECT_EQ(seen_by_d.host, "a");
  EXPECT_EQ(seen_by_d.ranks_of_host, 1U);
  EXPECT_TRUE(seen_by_d.folders.empty());
}

TEST(RunPlaceTest, ARankThatNamesNoHostRanHere) {
  const RunPlace alone = PlaceOf(StateFiles::OfOneRank({"/x/a"}, "uuid"), "a");
  EXPECT_EQ(alone.ranks_of_host, 1U);
  EXPECT_THAT(alone.folders, ElementsAre("/x"));
  const StateFiles some = {.ranks = {{.paths = {"/x/r0"}, .host = ""},
                                     {.paths = {"/x/r1"}, .host = "a"},
                                     {.paths = {"/x/r2"}, .host = "b"}}};
  EXPECT_EQ(PlaceOf(some, "a").ranks_of_host, 2U);
  EXPECT_EQ(PlaceOf(some, "").ranks_of_host, 1U) << "a host without a name";
}

TEST_F(RunChecksTest, ARunThatEndedByItsNumbersOrSkippedMuchLeadsToThem) {
  WriteRows(30, /*skipped=*/true);
  WriteSummary("\"interrupted\":false");
  temp_.Write("overflow.json", "{\"stop\":\"20 steps in a row were skipped\",\"step\":30}");
  const Checks checks = RunChecks(Read(), std::nullopt);
  EXPECT_THAT(checks[1], CheckIs(CheckState::kWarn, "20 steps in a row were skipped"));
  EXPECT_THAT(checks[1], CheckIs(CheckState::kWarn, "penstock numerics"));
  EXPECT_THAT(checks[2], CheckIs(CheckState::kWarn, "30 of 30"));
}

TEST_F(RunChecksTest, OfARunOfThePackageNothingIsConcludedFromWhatItsRowsDoNotHave) {
  WriteInfo({{.paths = {"/drive/a"}}}, RunKind::kModule);
  Checks checks = RunChecks(Read(), 1);
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_THAT(ToText(checks), HasSubstr("its steps report no loss"));
  WriteRows(30, /*skipped=*/true);
  temp_.Write("overflow.json", R"({"stop":"it stopped"})");
  checks = RunChecks(Read(), 1);
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_THAT(ToText(checks),
              AllOf(HasSubstr("the Python package (module), 30 steps up to 30, 1 s each"),
                    HasSubstr("it stopped"), HasSubstr("30 of 30"), Not(HasSubstr("summary.json")),
                    Not(HasSubstr("tokens"))));
}

TEST_F(RunChecksTest, DamagedFilesAreNoErrors) {
  temp_.Write("metrics.jsonl", "\0\n[]\n{\"step\":\"x\"}\n{\"step\":1,\"step_s\":null}\n");
  temp_.Write("summary.json", "{\"config\":[1,2");
  temp_.Write("overflow.json", "[]");
  const Checks checks = RunChecks(Read(), std::nullopt);
  EXPECT_THAT(checks[1], CheckIs(CheckState::kWarn, "no summary.json"));
  EXPECT_EQ(checks[3].state, CheckState::kUnknown);
  temp_.Write("summary.json", R"({"config":{"penstock":[]},"interrupted":1})");
  EXPECT_FALSE(Read().simulated);
}

TEST_F(RunChecksTest, TheFoldersOfItsStateAreNamedOnce) {
  WriteInfo({{.paths = {"/drive/a", "/drive/b", "/other/c"}}});
  EXPECT_THAT(Read().place.folders, ElementsAre("/drive", "/other"));
  EXPECT_THAT(RunChecks(Read(), std::nullopt)[0], CheckIs(CheckState::kWarn, "has no row"));
}

TEST_F(RunChecksTest, AReportHasTheRunsFilesAndNoSecretOfTheEnvironment) {
  const Variable secret("AWS_SECRET_ACCESS_KEY", "do-not-tell");
  const Variable nccl("NCCL_DEBUG", "INFO");
  const Variable openmp("OMP_NUM_THREADS", "3");
  WriteRows(100);
  WriteSummary("\"interrupted\":false");
  const std::string text = ReportText({.checks = "ok  all\n",
                                       .configs = {{.name = "ds.json", .text = "{\"a\": 1}"}},
                                       .run = temp_.Path()});
  EXPECT_THAT(text, AllOf(HasSubstr("ok  all"), HasSubstr("{\"a\": 1}"), HasSubstr("\"step\":100,"),
                          HasSubstr("cpu (Fast)"), HasSubstr("00000000-0000-0000-0000"),
                          HasSubstr("NCCL_DEBUG=INFO"), HasSubstr("OMP_NUM_THREADS=3")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\"step\":70,")), Not(HasSubstr("do-not-tell")),
                          Not(HasSubstr("AWS_"))));
}

/// A machine with two CPUs and 4 GiB.
class ConfigChecksTest : public testing::Test {
 protected:
  ConfigChecksTest() {
    root_.Write("proc/self/status", "Cpus_allowed_list:\t0-1\n");
    root_.Write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
  }
  Result<config::Config> Parse(const std::string& more) const {
    return config::ParseConfig(
        {{.name = "ds.json", .text = "{\"train_micro_batch_size_per_gpu\": 2" + more + "}"}}, 1);
  }
  Checks ChecksOf(const std::string& more) const {
    return ConfigChecks(Parse(more).value(), machine_);
  }

  const TempFolder root_;
  ConfigMachine machine_ = {.engines = {.automatic = std::string()},
                            .files = MachineFiles(root_.Path())};
};

TEST_F(ConfigChecksTest, AWrongConfigurationFailsWithWhatTrainSays) {
  EXPECT_THAT(ConfigCheck(Parse(", \"bf17\": {}")), CheckIs(CheckState::kFail, "bf17"));
  EXPECT_THAT(ConfigCheck(Parse("")), CheckIs(CheckState::kOk, "AdamW, fp32, stage 0"));
}

TEST_F(ConfigChecksTest, MoreMemoryThanThereIsFailsAndMoreThreadsThanCpusAreAWarning) {
  EXPECT_THAT(ChecksOf(", \"penstock\": {\"host_memory\": \"5GiB\"}")[1],
              CheckIs(CheckState::kFail, "only 4.00 GiB are available"));
  EXPECT_EQ(ChecksOf(", \"penstock\": {\"host_memory\": \"3GiB\"}")[1].state, CheckState::kOk);
  EXPECT_THAT(ChecksOf(", \"penstock\": {\"optimizer_threads\": 3}")[2],
              CheckIs(CheckState::kWarn, "there are 2 CPUs"));
}

TEST_F(ConfigChecksTest, DeviceMemoryIsTheHostsUnlessTheProgramComputesOnAGpu) {
  const std::string config =
      ", \"penstock\": {\"host_memory\": \"3GiB\", \"device_memory\": \"2GiB\"}";
  // Of a machine with a GPU, but a build without CUDA.
  root_.Write("dev/nvidia0", "");
  EXPECT_THAT(ChecksOf(config)[1], CheckIs(CheckState::kFail, "as the CPU computes"));
  EXPECT_THAT(ChecksOf(config)[1], CheckIs(CheckState::kFail, "or penstock.device_memory"));
  // In a container that was given another GPU than the first.
  fs::rename(root_.Path("dev/nvidia0"), root_.Path("dev/nvidia1"));
  machine_.device = device::Kind::kCuda;
  EXPECT_EQ(ChecksOf(config)[1].state, CheckState::kOk);
  EXPECT_THAT(ChecksOf(", \"penstock\": {\"host_memory\": \"5GiB\"}")[1],
              CheckIs(CheckState::kFail, "only 4.00 GiB are available; lower"));
}

TEST_F(ConfigChecksTest, RanksOfAMachineShareItsMemoryAndCpus) {
  const std::string config = ", \"penstock\": {\"host_memory\": \"3GiB\", \"compute_threads\": 1}";
  machine_.ranks = 2;
  EXPECT_THAT(ChecksOf(config)[1], CheckIs(CheckState::kFail, "of each of 2 ranks"));
  EXPECT_EQ(ChecksOf(config)[2].state, CheckState::kOk) << "a CPU each";
  machine_.ranks = 3;
  EXPECT_THAT(ChecksOf(config)[2], CheckIs(CheckState::kWarn, "there are 2 CPUs"));
}

TEST_F(ConfigChecksTest, AnEngineThatIsNotToBeHadFailsWhereStatesLiveOnNvme) {
  const std::string nvme =
      ", \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
      "\"nvme_path\": \"/x\"}}, \"penstock\": {\"aio\": {\"engine\": \"io_uring\"}}";
  EXPECT_EQ(ChecksOf(nvme)[3].state, CheckState::kOk);
  machine_.engines.uring.error_number = EPERM;
  EXPECT_THAT(ChecksOf(nvme)[3], CheckIs(CheckState::kFail, "not to be had here"));
}

}  // namespace
}  // namespace penstock::train
