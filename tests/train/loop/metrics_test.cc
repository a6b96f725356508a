#include "train/loop/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/deadline.h"
#include "tests/temp_folder.h"
#include "train/loop/metrics_summary.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;
using std::chrono::milliseconds;

std::vector<std::string> Keys(const OrderedJson& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(StepRow, HasTheContractsFieldsInTheirOrder) {
  EXPECT_THAT(Keys(OrderedJson::parse(ToJson(StepRow{}))),
              ElementsAre("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens",
                          "step_s", "tokens_per_s", "tflops", "compute_s", "io_wait_s",
                          "optimizer_s", "device_peak_bytes", "host_peak_bytes", "nvme_read_bytes",
                          "nvme_write_bytes", "hardware_tflops"));
}

TEST(StepRow, OfACallerHasNoFieldOfWhatOnlyTheCallerKnows) {
  EXPECT_THAT(
      Keys(OrderedJson::parse(ToJson(StepRow{.samples = 8, .previous_row = 3}))),
      ElementsAre("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "samples", "step_s",
                  "host_peak_bytes", "nvme_read_bytes", "nvme_write_bytes", "previous_row"));
}

TEST(StepRow, HasTheTimesOfItsPartsWhereTheyAreKnown) {
  const OrderedJson json =
      OrderedJson::parse(ToJson(StepRow{.forward_s = 0.25, .backward_s = 0.5}));
  EXPECT_EQ(json["forward_s"], 0.25);
  EXPECT_EQ(json["backward_s"], 0.5);
}

TEST(StepRow, OfSeveralRanksHasTheirFieldsBehind) {
  const std::vector<std::string> keys =
      Keys(OrderedJson::parse(ToJson(StepRow{.comm_wait_s = 0.5, .world_size = 2})));
  ASSERT_EQ(keys.size(), 20U);
  EXPECT_EQ(keys[17], "hardware_tflops");
  EXPECT_EQ(keys[18], "comm_wait_s");
  EXPECT_EQ(keys[19], "world_size");
}

TEST(StepRow, FloatsReadBackExactly) {
  for (const double value : {0.1, 1.0 / 3, 5.541263580322266, 1e-300, 3.0, 123456789.123456789}) {
    StepRow row;
    row.loss = value;
    row.grad_norm = -value;
    const OrderedJson json = OrderedJson::parse(ToJson(row));
    EXPECT_EQ(json["loss"].get<double>(), value);
    EXPECT_EQ(json["grad_norm"].get<double>(), -value);
  }
}

TEST(StepRow, NonFiniteIsNull) {
  StepRow row;
  row.loss = std::numeric_limits<double>::quiet_NaN();
  row.grad_norm = std::numeric_limits<double>::infinity();
  const OrderedJson json = OrderedJson::parse(ToJson(row));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

Reading Later(const Reading& begin) {
  Reading end = begin;
  end.time += milliseconds(2000);
  end.activity.compute += milliseconds(1500);
  end.activity.io_wait += milliseconds(250);
  end.activity.optimizer += milliseconds(500);
  end.activity.update += milliseconds(500);
  end.activity.update_hidden += milliseconds(400);
  end.activity.comm_wait += milliseconds(300);
  end.counters.nvme_read_bytes += 140;
  end.counters.nvme_write_bytes += 120;
  end.counters.nvme_commit_bytes += 16;
  end.counters.nvme_verify_bytes += 36;
  end.device_peak = 7_MiB;
  end.host_peak = 9_MiB;
  return end;
}

Reading SomeBegin() {
  Reading begin;
  begin.time = std::chrono::steady_clock::now();
  begin.activity.compute = milliseconds(11);
  begin.counters.nvme_read_bytes = 1000;
  begin.counters.nvme_write_bytes = 2000;
  begin.counters.nvme_init_bytes = 24;
  return begin;
}

TEST(Measure, TakesDifferencesOfSumsAndPeaksAsTheyAre) {
  const Reading begin = SomeBegin();
  StepRow row;
  row.tokens = 1000;
  const ModelCost cost = {
      .parameters = 100, .layers = 2, .width = 8, .sequence = 16, .layer_parameters = 80};
  Measure(begin, Later(begin), cost, &row);
  EXPECT_DOUBLE_EQ(row.step_s, 2.0);
  EXPECT_DOUBLE_EQ(row.tokens_per_s, 500.0);
  EXPECT_DOUBLE_EQ(row.compute_s, 1.5);
  EXPECT_DOUBLE_EQ(row.io_wait_s, 0.25);
  EXPECT_DOUBLE_EQ(row.optimizer_s, 0.5);
  EXPECT_DOUBLE_EQ(row.comm_wait_s, 0.3);
  EXPECT_EQ(row.nvme_read_bytes, 140U);
  EXPECT_EQ(row.nvme_write_bytes, 120U);
  EXPECT_EQ(row.device_peak_bytes, (7_MiB).value);
  EXPECT_EQ(row.host_peak_bytes, (9_MiB).value);
  // tokens * (6 N + 12 layers width T) / step_s = 1000 * (600 + 3072) / 2 s
  EXPECT_DOUBLE_EQ(row.tflops, 1.836e-6);
  // and a third of (6 M + 12 layers width T) more: 1000 * (480 + 3072) / 3 / 2 s
  EXPECT_DOUBLE_EQ(row.hardware_tflops, 1.836e-6 + 0.592e-6);
}

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters": with
// recomputation 96 B s l h^2 (1 + s / 6h + V / 16lh), and without it 72 and 12 in place of 96 and
// 16. Megatron's numbers for a model of 14336 by 70 at a batch of 2048 on 384 GPUs.
TEST(Measure, CountsOperationsAsMegatronDoes) {
  const uint64_t h = 14336, layers = 70, vocabulary = 250880;
  const ModelCost cost = {.parameters = 12 * layers * h * h + vocabulary * h,
                          .layers = layers,
                          .width = h,
                          .sequence = 2048,
                          .layer_parameters = 12 * layers * h * h};
  const uint64_t tokens = uint64_t{2048} * 2048;
  EXPECT_NEAR(cost.HardwareFlopsPerStep(tokens) / 102.03 / 384 / 1e12, 153.68, 0.01);
  EXPECT_NEAR(cost.HardwareFlopsPerStep(tokens) / 121.63 / 384 / 1e12, 128.92, 0.01);
  EXPECT_NEAR(cost.FlopsPerStep(tokens) / 102.03 / 384 / 1e12, 115.84, 0.01);
}

TEST(MetricsWriter, EachRowIsOneLineThatIsThereAtOnce) {
  const TempFolder folder;
  Result<MetricsWriter> writer = MetricsWriter::Create(folder.Open(), "rows.jsonl");
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  StepRow row;
  row.step = 1;
  ASSERT_TRUE(writer->Append(row).ok());
  const std::string first = folder.Read("rows.jsonl");
  EXPECT_EQ(first, ToJson(row) + "\n");
  row.step = 2;
  ASSERT_TRUE(writer->Append(row).ok());
  EXPECT_EQ(folder.Read("rows.jsonl"), first + ToJson(row) + "\n");
}

// As the loop over steps and a commit do.
TEST(MetricsWriter, RowsAreAppendedWhileAnotherThreadSynchronisesThem) {
  const TempFolder folder;
  Result<MetricsWriter> writer = MetricsWriter::Create(folder.Open(), "rows.jsonl");
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  std::atomic<bool> all = false;
  std::atomic<int> syncs = 0;
  std::thread committing([&] {
    while (!all) {
      EXPECT_TRUE(std::as_const(*writer).Sync().ok());
      ++syncs;
    }
  });
  std::string expected;
  for (uint64_t step = 1; step <= 200; ++step) {
    const StepRow row{.step = step};
    EXPECT_TRUE(writer->Append(row).ok());
    expected += ToJson(row) + "\n";
  }
  EXPECT_TRUE(BecomesTrue([&] { return syncs > 1; }));
  all = true;
  committing.join();
  EXPECT_EQ(folder.Read("rows.jsonl"), expected);
}

TEST(StepRow, ALossThatIsNoNumberIsShownWithoutASign) {
  for (const double sign : {1.0, -1.0}) {
    const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    EXPECT_EQ(LossText(nan), "nan");
  }
  EXPECT_EQ(LossText(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(LossText(2.5), "2.5000");
}

TEST(MetricsWriter, ARowBehindMissingOnesNamesTheOneBeforeItAndIsCutAsAnyOther) {
  const TempFolder folder;
  {
    MetricsWriter writer = MetricsWriter::Create(folder.Open(), "m.jsonl").value();
    for (const uint64_t step : {3, 4, 7}) ASSERT_TRUE(writer.Append(StepRow{.step = step}).ok());
  }
  const auto previous = [&folder](uint64_t step) {
    const std::string text = folder.Read("m.jsonl");
    const size_t at = text.find("{\"step\":" + std::to_string(step) + ",");
    return OrderedJson::parse(text.substr(at, text.find('\n', at) - at)).value("previous_row", 0);
  };
  EXPECT_EQ(previous(3), 0);
  EXPECT_EQ(previous(4), 0);
  EXPECT_EQ(previous(7), 4);
  const auto silent = [](const std::string& line) { ADD_FAILURE() << line; };
  // The commit of step 6 has no row.
  MetricsWriter writer = MetricsWriter::Resume(folder.Open(), "m.jsonl", 6, "", silent).value();
  ASSERT_TRUE(writer.Append(StepRow{.step = 8}).ok());
  EXPECT_EQ(previous(8), 4);
}

TEST(MetricsWriter, AFileOfRowsIsKnownByItsFirstLine) {
  const TempFolder folder;
  const auto holds = [&folder](const std::string& text) {
    folder.Write("m.jsonl", text);
    return MetricsWriter::HoldsRows(folder.Open(), "m.jsonl").value();
  };
  EXPECT_TRUE(holds(""));
  EXPECT_TRUE(holds(ToJson(StepRow{.step = 4}) + "\n{\"st"));
  EXPECT_TRUE(holds(ToJson(StepRow{.step = 4, .samples = 8}) + "\n"));
  for (const char* other : {"{\"step\":1,\"loss\":2}\n", "[1]\n", "step,loss\n", "\n", "{\"st"}) {
    EXPECT_FALSE(holds(other)) << other;
  }
}

TEST(MetricsWriter, RefusesAFileThatExists) {
  const TempFolder folder;
  const std::string path = folder.Write("rows.jsonl", "something\n");
  const Result<MetricsWriter> writer = MetricsWriter::Create(folder.Open(), "rows.jsonl");
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(writer.error().message, HasSubstr(path));
  EXPECT_EQ(folder.Read("rows.jsonl"), "something\n");
}

TEST(MetricsWriter, RowsAreWholeThoughStepsWerePassedOver) {
  const TempFolder folder;
  const std::string first = ToJson(StepRow{.step = 1}) + "\n";
  const std::string after = ToJson(StepRow{.step = 5, .previous_row = 1}) + "\n";
  const std::string next = ToJson(StepRow{.step = 6}) + "\n";
  EXPECT_THAT(after, HasSubstr("\"previous_row\":1"));
  const auto resumed = [&](const std::string& rows, uint64_t step, const StepRow& row) {
    folder.Write("rows.jsonl", rows);
    const auto writer = MetricsWriter::Resume(folder.Open(), "rows.jsonl", step, ToJson(row),
                                              [](const std::string&) {});
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    return folder.Read("rows.jsonl");
  };
  const StepRow fifth = {.step = 5, .previous_row = 1};
  EXPECT_EQ(resumed(first + after + next, 6, {.step = 6}), first + after + next);
  EXPECT_EQ(resumed(first + after + next, 5, fifth), first + after);
  EXPECT_EQ(resumed(first, 5, fifth), first + after);
  EXPECT_EQ(resumed("", 5, {.step = 5, .previous_row = 0}),
            ToJson(StepRow{.step = 5, .previous_row = 0}) + "\n");
}

TEST(MetricsWriter, AfterAGapARowNamesTheOneBeforeItThoughStepsWerePassedOver) {
  const TempFolder folder;
  folder.Write("rows.jsonl", ToJson(StepRow{.step = 1}) + "\n");
  const StepRow row = {.step = 9, .previous_row = 4};
  ASSERT_TRUE(
      MetricsWriter::Resume(folder.Open(), "rows.jsonl", 9, ToJson(row), [](const std::string&) {
      }).ok());
  EXPECT_THAT(folder.Read("rows.jsonl"), HasSubstr("\"previous_row\":1}"));
}

RunSummary SomeSummary() {
  RunSummary summary;
  summary.layout.model.parameters = 1000;
  offload::ModuleLayout module;
  module.tensors.push_back({.name = "a.weight", .group = offload::kDecay});
  module.tensors.push_back({.name = "a.bias", .group = offload::kNoDecay});
  summary.layout.model.modules.push_back(module);
  summary.config.train_batch_size = 4;
  summary.config.micro_batch_size = 4;
  summary.config.optimizer.hyper = kernels::AdamHyperparameters{.weight_decay = 0.1};
  summary.device_memory = 4000_B;
  summary.host_memory = 1_MiB;
  summary.aio_engine = "threads";
  summary.device = "cpu";
  summary.seed = 42;
  summary.cost = {.parameters = 1000};
  summary.loop.steps = 2;
  summary.loop.tokens = 800;
  summary.loop.last_step = 2;
  summary.loop.committed_step = 2;
  summary.loop.first_loss = 5.5;
  summary.loop.last_loss = 2.25;
  summary.loop.begin = SomeBegin();
  summary.loop.end = Later(summary.loop.begin);
  return summary;
}

TEST(RunSummary, HasTheContractsFields) {
  const OrderedJson json = OrderedJson::parse(ToJson(SomeSummary()));
  EXPECT_EQ(json["parameters"], 1000);
  EXPECT_EQ(json["model_state_bytes"], 16000);
  EXPECT_EQ(json["device_memory_bytes"], 4000);
  EXPECT_EQ(json["host_memory_bytes"], (1_MiB).value);
  EXPECT_EQ(json["device_peak_bytes"], (7_MiB).value);
  EXPECT_EQ(json["host_peak_bytes"], (9_MiB).value);
  EXPECT_EQ(json["tokens"], 800);
  EXPECT_EQ(json["step_s"], 2.0);
  EXPECT_EQ(json["nvme_read_bytes"], 140);
  EXPECT_EQ(json["nvme_write_bytes"], 120);
  EXPECT_EQ(json["nvme_init_bytes"], 24);
  EXPECT_EQ(json["nvme_commit_bytes"], 16);
  EXPECT_EQ(json["nvme_verify_bytes"], 36);
  EXPECT_EQ(json["evictions"], 0);
  EXPECT_EQ(json["update_overlap_s"], 0.4);
  EXPECT_EQ(json["aio_engine"], "threads");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["seed"], 42);
  EXPECT_EQ(json["last_loss"], 2.25);
  EXPECT_EQ(json["interrupted"], false);
  EXPECT_TRUE(json["config"].is_object());
}

TEST(RunSummary, OfSeveralRanksSaysHowLongTheyWaited) {
  RunSummary summary = SomeSummary();
  EXPECT_FALSE(OrderedJson::parse(ToJson(summary)).contains("comm_wait_s"));
  summary.layout.world_size = 4;
  const OrderedJson json = OrderedJson::parse(ToJson(summary));
  EXPECT_EQ(json["comm_wait_s"], 0.3);
  EXPECT_EQ(json["world_size"], 4);
}

TEST(RunSummary, NamesTheTensorsOfEachParameterGroup) {
  const OrderedJson groups = OrderedJson::parse(ToJson(SomeSummary()))["parameter_groups"];
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0]["weight_decay"], 0.1);
  EXPECT_EQ(groups[0]["tensors"], OrderedJson::array({"a.weight"}));
  EXPECT_EQ(groups[1]["weight_decay"], 0.0);
  EXPECT_EQ(groups[1]["tensors"], OrderedJson::array({"a.bias"}));
}

TEST(RunSummary, OfARunWithoutStepsHasNoLoss) {
  RunSummary summary = SomeSummary();
  summary.loop.first_loss.reset();
  summary.loop.last_loss.reset();
  EXPECT_TRUE(OrderedJson::parse(ToJson(summary))["first_loss"].is_null());
  EXPECT_THAT(ToTable(summary), HasSubstr("first none, last none"));
}

TEST(RunSummary, TableShowsWhatTheRunWasFor) {
  const std::string table = ToTable(SomeSummary());
  EXPECT_THAT(table, HasSubstr("first 5.5000, last 2.2500"));
  EXPECT_THAT(table, HasSubstr("4.0 times the device memory"));
  EXPECT_THAT(table, HasSubstr("140 bytes read, 120 bytes written"));
  EXPECT_THAT(table, HasSubstr("12.5 % of the time"));
  EXPECT_THAT(table, HasSubstr("80.0 % of 0.50 s"));
}

TEST(RunSummary, AModelThatIsSmallBesideTheDeviceIsNotZeroTimesIt) {
  RunSummary summary = SomeSummary();
  summary.device_memory = 1000 * summary.model_state();
  EXPECT_THAT(ToTable(summary), HasSubstr(", less than 0.1 times the device memory"));
}

}  // namespace
}  // namespace penstock::train
