// A family that the program does not have is one more entry in the list of families: it is trained,
// exported and read again by code that knows none.
#include "train/models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "run/run_folder.h"
#include "run/snapshot.h"
#include "tests/temp_folder.h"
#include "tests/train/models/bigram.h"
#include "train/models/gpt2_family.h"
#include "train/trainer/trainer.h"
#include "train/weights/export.h"
#include "train/weights/safetensors.h"

namespace penstock::train {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kBigram[] =
    R"({"model_type": "bigram", "vocab_size": 128, "width": 8, "context": 16})";

constexpr uint64_t kSteps = 30;

class Registry : public ::testing::Test {
 protected:
  const std::array<const ModelFamily*, 2> families_ = {&Gpt2Family(), &BigramFamily()};
  const TempFolder folder_;
};

TEST_F(Registry, EachTypeIsReadByItsFamily) {
  const ParsedModel bigram = ParseModel(kBigram, "C", families_).value();
  EXPECT_EQ(bigram.family, &BigramFamily());
  EXPECT_EQ(bigram.described.model->sizes().vocabulary, 128U);
  EXPECT_THAT(bigram.described.notices, IsEmpty());
  const ParsedModel gpt2 = ParseModel(R"({"model_type": "gpt2"})", "C", families_).value();
  EXPECT_EQ(gpt2.family, &Gpt2Family());
  EXPECT_EQ(gpt2.described.model->sizes().vocabulary, 50257U);
}

TEST_F(Registry, ATypeThatIsNotThereIsRefusedWithThoseThatAre) {
  EXPECT_TRUE(FailsWith(ParseModel(R"({"model_type": "mamba"})", "PATH", families_),
                        ErrorCode::kInvalidArgument,
                        {"model config PATH: model_type is \"mamba\"",
                         "only \"gpt2\" and \"bigram\" are implemented"}));
  EXPECT_TRUE(FailsWith(ParseModel("{}", "PATH", families_), ErrorCode::kInvalidArgument,
                        {"model_type is missing; it must be \"gpt2\" or \"bigram\""}));
  EXPECT_TRUE(FailsWith(ParseModel(kBigram, "PATH"), ErrorCode::kInvalidArgument,
                        {"model_type is \"bigram\"; only ", "implemented"}));
}

TEST_F(Registry, FilesAreOfTheFamilyWhoseEmbeddingOrPrefixTheyHave) {
  const auto guess = [this](std::vector<std::string_view> tensors) {
    return GuessFamily(tensors, families_).model_type();
  };
  EXPECT_EQ(guess({"lm_head.weight", "table.weight"}), "bigram");
  EXPECT_EQ(guess({"bigram.table.weight"}), "bigram");
  EXPECT_EQ(guess({"lm_head.weight", "bigram.other"}), "bigram");
  EXPECT_EQ(guess({"transformer.wte.weight"}), "gpt2");
  EXPECT_EQ(guess({"lm_head.weight"}), "gpt2");
}

class TrainedFamily : public Registry {
 protected:
  TrainedFamily() {
    folder_.Write("model/config.json", kBigram);
    std::string text;
    while (text.size() < 2000) text += "a bigram learns which letter follows which; ";
    folder_.Write("data.txt", text);
  }
  /// Trains up to a step; returns the rows of metrics.jsonl.
  std::vector<json> TrainInto(const std::string& run, const std::string& home,
                              const std::string& model = "model", uint64_t steps = kSteps,
                              bool resume = false) const {
    const json place = home == "nvme" ? json{{"device", home}, {"nvme_path", folder_.Path()}}
                                      : json{{"device", home}};
    const json config = {{"train_micro_batch_size_per_gpu", 2},
                         {"gradient_accumulation_steps", 3},
                         {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.03}}}}},
                         {"zero_optimization",
                          {{"stage", 3}, {"offload_param", place}, {"offload_optimizer", place}}},
                         {"penstock",
                          {{"commit_every_seconds", 0},
                           {"compute_threads", 1},
                           {"rampup_batch_size", rampup_},
                           {"snapshot_every_steps", snapshot_every_}}}};
    TrainOptions options;
    options.model = folder_.Path(model);
    options.configs = {folder_.Write("config.json", config.dump())};
    options.data = folder_.Path("data.txt");
    options.out = folder_.Path(run);
    options.steps = steps;
    options.resume = resume;
    options.device = DeviceChoice::kCpu;
    options.device_memory = 64_MiB;
    options.host_memory = 256_MiB;
    const auto summary = Train(options, families_);
    EXPECT_TRUE(summary.ok()) << summary.error().message;
    std::vector<json> rows;
    if (!summary.ok()) return rows;
    std::istringstream lines(folder_.Read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
    return rows;
  }

  json rampup_;
  uint64_t snapshot_every_ = 0;
};

TEST_F(TrainedFamily, LearnsTheSameInEveryPlacement) {
  const std::vector<json> resident = TrainInto("resident", "none");
  const std::vector<json> offloaded = TrainInto("offloaded", "nvme");
  ASSERT_EQ(resident.size(), kSteps);
  ASSERT_EQ(offloaded.size(), kSteps);
  for (size_t i = 0; i < resident.size(); ++i) {
    EXPECT_EQ(resident[i]["loss"], offloaded[i]["loss"]) << i;
    EXPECT_EQ(resident[i]["tokens"], 2 * 3 * 16) << i;
  }
  EXPECT_NEAR(resident.front()["loss"].get<double>(), std::log(128.0), 0.1);
  EXPECT_LT(resident.back()["loss"].get<double>(), 3);
}

TEST_F(TrainedFamily, TrainsWithABatchThatGrows) {
  rampup_ = {2, 2, 6};
  const std::vector<json> resident = TrainInto("resident", "none");
  const std::vector<json> offloaded = TrainInto("offloaded", "nvme");
  ASSERT_EQ(resident.size(), kSteps);
  ASSERT_EQ(offloaded.size(), kSteps);
  for (size_t i = 0; i < resident.size(); ++i) {
    const uint64_t batch = i < 2 ? 2 : i < 3 ? 4 : 6;
    EXPECT_EQ(resident[i]["tokens"], batch * 16) << i;
    EXPECT_EQ(resident[i]["loss"], offloaded[i]["loss"]) << i;
  }
}

TEST_F(TrainedFamily, IsResumedAndKeptInSnapshotsAsWell) {
  const std::vector<json> whole = TrainInto("whole", "cpu");
  snapshot_every_ = 10;
  TrainInto("run", "cpu", "model", 5);
  const std::vector<json> resumed = TrainInto("run", "cpu", "model", kSteps, /*resume=*/true);
  ASSERT_EQ(resumed.size(), kSteps);
  for (size_t i = 0; i < kSteps; ++i) EXPECT_EQ(resumed[i]["loss"], whole[i]["loss"]) << i;
  // Steps are faster than a copy: the one of step 20 may be due while that of step 10 is made.
  EXPECT_THAT(Snapshots(OpenRun(folder_.Path("run")).value()), Not(IsEmpty()));
}

TEST_F(TrainedFamily, IsExportedUnderItsOwnNamesAndTrainedFromThere) {
  const double learned = TrainInto("run", "cpu").back()["loss"].get<double>();
  const RunInfo info = ReadRunInfo(folder_.Path("run")).value();
  const auto state = zero::CommittedState::Open(info.state->paths()).value();
  ASSERT_TRUE(ExportModel(*state, {.folder = folder_.Path("exported"),
                                   .family = &BigramFamily(),
                                   .config_json = info.training.model_json})
                  .ok());
  EXPECT_EQ(json::parse(folder_.Read("exported/config.json"))["architectures"][0], "BigramModel");
  const SafetensorsReader file =
      SafetensorsReader::Open(folder_.Path("exported/model.safetensors")).value();
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.entries()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("bigram.table.weight", "lm_head.weight"));
  const json first = TrainInto("again", "cpu", "exported").front();
  EXPECT_LT(first["loss"].get<double>(), learned + 0.5) << "it did not begin with what was learned";
}

}  // namespace
}  // namespace penstock::train
