// run.json in version 3, and the older formats that are read into the same.
#include "run/run_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/run_folder.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kUuid = "0123456789abcdef0123456789abcdef";
constexpr const char* kOtherUuid = "1111111189abcdef0123456789abcdef";
/// That the package made for a run of version 1.
constexpr const char* kOlderFolder = "nvme/penstock-9f0c3a5b7d112233";
/// What the library's exceptions begin with.
constexpr const char* kOfTheLibrary = "json.exception";

class RunInfoTest : public ::testing::Test {
 protected:
  RunInfoTest() { std::filesystem::create_directory(base_.Path("run")); }

  RunInfo Training() const {
    return {
        .program = "0.1.0",
        .run_uuid = "4567",
        .place = base_.Path("run"),
        .state = StateFiles::OfOneRank({"/nvme/0.state", base_.Path("run/1.state")}, "0123"),
        .training = {.model_json = "{\"model_type\": \"gpt2\",\n \"note\": \"\\u00e9 \xc3\xa9\"}",
                     .data_path = "/data/text",
                     .data_order = "shuffle",
                     .seed = 18446744073709551615U,
                     .sequence_length = 64,
                     .device = "cpu"}};
  }
  Status Write(const RunInfo& info) const { return WriteRunInfo(base_.Open("run"), info); }
  Result<RunInfo> Read() const { return ReadRunInfo(base_.Path("run")); }
  Json Text() const { return Json::parse(base_.Read("run/run.json")); }
  void SetText(const Json& json) const { base_.Write("run/run.json", json.dump()); }
  /// Of penstock train in version 1, and in version 2 with ranks.
  Json Older() const {
    return {{"version", 1},
            {"program", "0.1.0"},
            {"state_paths", {"/nvme/0.state", "1.state"}},
            {"state_uuid", "0123"},
            {"leftovers", Json::array({{{"state_paths", {"/nvme/9.state"}}, {"state_uuid", "9"}}})},
            {"seed", 5},
            {"device", "cpu"},
            {"sequence_length", 64},
            {"data", {{"path", "/data/text"}, {"order", "sequential"}}},
            {"model", "{}"}};
  }
  /// Of the package in version 1.
  Json OfPackage(const std::string& folder) const {
    return {{"penstock_run", 1},  {"id", "9f0c3a5b7d112233"}, {"kind", "optimizer"},
            {"named", true},      {"state", nullptr},         {"place", base_.Path("run")},
            {"folders", {folder}}};
  }

  const TempFolder base_;
};

TEST_F(RunInfoTest, ReadsBackAsItWasWritten) {
  const RunInfo info = Training();
  ASSERT_TRUE(Write(info).ok());
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->kind, RunKind::kTrain);
  EXPECT_EQ(read->format, RunFormat::kCurrent);
  EXPECT_EQ(read->program, info.program);
  EXPECT_EQ(read->run_uuid, info.run_uuid);
  EXPECT_EQ(read->place, info.place);
  EXPECT_EQ(read->state->paths(), info.state->paths());
  EXPECT_EQ(read->state->uuid, info.state->uuid);
  EXPECT_EQ(read->training.model_json, info.training.model_json);
  EXPECT_EQ(read->training.data_path, info.training.data_path);
  EXPECT_EQ(read->training.data_order, info.training.data_order);
  EXPECT_EQ(read->training.device, info.training.device);
  EXPECT_EQ(read->training.seed, info.training.seed);
  EXPECT_EQ(read->training.sequence_length, info.training.sequence_length);
  EXPECT_THAT(base_.List("run"), ElementsAre("run.json"));
}

TEST_F(RunInfoTest, HasTheKeysOfTheFormat) {
  ASSERT_TRUE(Write(Training()).ok());
  const Json json = Text();
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["kind"], "train");
  EXPECT_EQ(json["state"], Json::parse(R"({"uuid": "0123", "ranks": [
      {"host": "", "paths": ["/nvme/0.state", "1.state"]}]})"));
  EXPECT_EQ(json["training"]["data"], Json::parse(R"({"path": "/data/text", "order": "shuffle"})"));
  EXPECT_EQ(json["leftovers"], Json::array());
  for (const char* key :
       {"temporary", "rows_from", "made_files", "copying", "automatic", "changes", "skip_steps"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
}

TEST_F(RunInfoTest, ARunOfThePackageHasNoTrainingAndMayHaveNoState) {
  for (const RunKind kind : {RunKind::kOptimizer, RunKind::kModule}) {
    const RunInfo info = {.kind = kind,
                          .program = "0.1.0",
                          .run_uuid = "4567",
                          .place = base_.Path("run"),
                          .temporary = true,
                          .leftovers = {StateFiles::OfOneRank({"/nvme/0.state"}, "0123")}};
    ASSERT_TRUE(Write(info).ok());
    EXPECT_EQ(Text()["training"], Json::object());
    EXPECT_EQ(Text()["state"], nullptr);
    const Result<RunInfo> read = Read();
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->kind, kind);
    EXPECT_TRUE(read->temporary);
    EXPECT_TRUE(
        FailsWith(CommittedFiles(*read, "RUN"), ErrorCode::kNotFound, {"RUN", "no commit"}));
    ASSERT_EQ(read->leftovers.size(), 1U);
    EXPECT_THAT(read->leftovers[0].all(), ElementsAre("/nvme/0.state"));
  }
}

TEST_F(RunInfoTest, StatesOfRanksKeepTheirHosts) {
  RunInfo info = Training();
  info.state = StateFiles{
      .ranks = {{.paths = {"/nvme/0"}, .host = "a"}, {.paths = {"/nvme/1"}, .host = "b"}},
      .uuid = "0123"};
  ASSERT_TRUE(Write(info).ok());
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->state->ranks.size(), 2U);
  EXPECT_EQ(read->state->ranks[1].host, "b");
  EXPECT_THAT(read->state->ranks[1].paths, ElementsAre("/nvme/1"));
}

TEST_F(RunInfoTest, WhatWasChangedAndPassedOverIsReadAsItWasWritten) {
  RunInfo info = Training();
  info.changes = {{.step = 7, .key = "gradient_clipping", .before = "1.0", .after = "0.5"},
                  {.step = 9, .key = "scheduler", .before = "null", .after = R"({"a":"b"})"}};
  info.skip_steps = {{7, 9}, {11, 11}};
  info.automatic = 7;
  info.rows_from = "kept";
  info.copying = "/kept/first";
  ASSERT_TRUE(Write(info).ok());
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->changes, info.changes);
  EXPECT_EQ(read->skip_steps, info.skip_steps);
  EXPECT_EQ(read->automatic, 7U);
  EXPECT_EQ(read->rows_from, "kept");
  EXPECT_EQ(read->copying, "/kept/first");
}

TEST_F(RunInfoTest, AKeyThatIsUnknownMissingOrOfAnotherTypeIsDamageWithItsPath) {
  RunInfo info = Training();
  info.leftovers = {*info.state};
  info.changes = {{.step = 7, .key = "a", .before = "1.0", .after = "0.5"}};
  info.skip_steps = {{7, 9}};
  info.automatic = 1;
  info.rows_from = "kept";
  info.copying = "/kept/first";
  info.temporary = true;
  ASSERT_TRUE(Write(info).ok());
  const Json whole = Text().flatten();
  const std::vector<std::string> optional = {"/automatic", "/copying", "/rows_from", "/temporary"};
  for (const auto& [pointer, value] : whole.items()) {
    if (pointer.starts_with("/version")) continue;
    const Json::json_pointer place(pointer);
    if (pointer != "/changes/0/old" && pointer != "/changes/0/new") {
      Json json = whole.unflatten();
      json[place] = Json::array({1.5});
      SetText(json);
      EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"is damaged"})) << pointer;
      EXPECT_THAT(Read().error().message, Not(HasSubstr(kOfTheLibrary)));
    }
    Json json = whole.unflatten();
    Json& parent = json[place.parent_pointer()];
    if (!parent.is_object()) continue;
    parent.erase(place.back());
    SetText(json);
    const bool may_lack = std::ranges::find(optional, pointer) != optional.end();
    EXPECT_EQ(Read().ok(), may_lack) << pointer;
    parent[place.back()] = value;
    parent["surplus"] = value;
    SetText(json);
    EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"surplus\" is no key"})) << pointer;
  }
}

TEST_F(RunInfoTest, ATextThatIsNoRunJsonIsDamage) {
  ASSERT_TRUE(Write(Training()).ok());
  const std::string whole = base_.Read("run/run.json");
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2),
                                  std::string("[]"), std::string("{}"), std::string("null")}) {
    base_.Write("run/run.json", text);
    const Result<RunInfo> read = Read();
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruption) << text;
    EXPECT_THAT(read.error().message, Not(HasSubstr(kOfTheLibrary)));
  }
}

TEST_F(RunInfoTest, AnUnknownVersionIsRefusedByItsNumber) {
  for (const char* version : {"4", "0", "-1", "3.5", "1e30", "18446744073709551616", "\"3\""}) {
    for (const char* key : {"version", "penstock_run"}) {
      base_.Write("run/run.json", fmt::format("{{\"{}\": {}, \"news\": 1}}", key, version));
      EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"version", "is not known"}))
          << Read().error().message;
    }
  }
  base_.Write("run/run.json", R"({"version": 4})");
  EXPECT_THAT(Read().error().message, HasSubstr("version 4"));
}

TEST_F(RunInfoTest, NumbersThatNoRunWritesAreDamage) {
  ASSERT_TRUE(Write(Training()).ok());
  const std::string whole = base_.Read("run/run.json");
  for (const std::string key : {"seed", "sequence_length"}) {
    for (const char* number : {"-1", "1.5", "1e30", "18446744073709551616", "true"}) {
      std::string text = whole;
      const size_t begin = text.find(": ", text.find("\"" + key + "\"")) + 2;
      text.replace(begin, text.find_first_of(",\n", begin) - begin, number);
      base_.Write("run/run.json", text);
      EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {key})) << number;
    }
  }
  RunInfo info = Training();
  for (const StepRange& range : {StepRange{9, 7}, StepRange{0, 7}, StepRange{7, 281474976710657}}) {
    info.skip_steps = {range};
    ASSERT_TRUE(Write(info).ok());
    EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"passes over"}));
  }
}

TEST_F(RunInfoTest, APlaceThatIsRelativeAndANameThatIsNoneAreDamage) {
  RunInfo info = Training();
  info.place = "runs/first";
  ASSERT_TRUE(Write(info).ok());
  EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"place"}));
  info = Training();
  for (const std::string from : {"../kept", "/kept"}) {
    info.rows_from = from;
    ASSERT_TRUE(Write(info).ok());
    EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {from}));
  }
  info.kind = RunKind::kModule;  // may have resumed from a folder elsewhere
  ASSERT_TRUE(Write(info).ok());
  EXPECT_EQ(Read()->rows_from, "/kept");
  info.made_files = {"metrics.jsonl", "/csv/Train_Samples_lr.csv"};
  ASSERT_TRUE(Write(info).ok());
  EXPECT_EQ(Read()->made_files, info.made_files);
  for (const std::string file : {"notes.txt", "../metrics.jsonl", "/csv/lr.csv"}) {
    info.made_files = {file};
    ASSERT_TRUE(Write(info).ok());
    EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {file}));
  }
  info = Training();
  info.copying = "kept/first";
  ASSERT_TRUE(Write(info).ok());
  EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {"copying"}));
}

TEST_F(RunInfoTest, WhatIsNotUtf8IsRefusedInsteadOfWritten) {
  RunInfo info = Training();
  info.state = StateFiles::OfOneRank({"/nvme/\xff.state"}, "0123");
  EXPECT_TRUE(FailsWith(Write(info), ErrorCode::kInvalidArgument, {"UTF-8"}));
  EXPECT_FALSE(base_.Has("run/run.json"));
}

TEST_F(RunInfoTest, AnOlderRunOfTrainBecomesTheSameInVersion3) {
  Json older = Older();
  SetText(older);
  const Result<RunInfo> one = Read();
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(one->format, RunFormat::kOlder);
  EXPECT_EQ(one->run_uuid, "0123");  // the state's, if there is none
  EXPECT_EQ(one->place, "");
  EXPECT_THAT(one->state->all(), ElementsAre("/nvme/0.state", base_.Path("run/1.state")));
  ASSERT_EQ(one->leftovers.size(), 1U);
  EXPECT_EQ(one->leftovers[0].uuid, "9");
  EXPECT_EQ(one->training.data_order, "sequential");
  EXPECT_EQ(one->training.seed, 5U);

  older.erase("state_paths");
  older["version"] = 2;
  older["run_uuid"] = "4567";
  older["ranks"] = Json::parse(R"([{"host": "a", "state_paths": ["/nvme/0.state"]},
                                   {"host": "b", "state_paths": ["/nvme/1.state"]}])");
  SetText(older);
  const Result<RunInfo> two = Read();
  ASSERT_TRUE(two.ok()) << two.error().message;
  EXPECT_EQ(two->run_uuid, "4567");
  EXPECT_EQ(two->state->ranks[1].host, "b");

  RunInfo written = *two;
  written.place = base_.Path("run");
  ASSERT_TRUE(Write(written).ok());
  const Result<RunInfo> three = Read();
  ASSERT_TRUE(three.ok()) << three.error().message;
  EXPECT_EQ(three->format, RunFormat::kCurrent);
  EXPECT_EQ(three->state->paths(), two->state->paths());
  EXPECT_EQ(three->run_uuid, two->run_uuid);
}

TEST_F(RunInfoTest, AnOlderRunThatLacksWhatItNeedsIsDamage) {
  for (const char* key : {"program", "state_paths", "state_uuid", "seed", "data", "model"}) {
    Json older = Older();
    older.erase(key);
    SetText(older);
    EXPECT_TRUE(FailsWith(Read(), ErrorCode::kCorruption, {key})) << key;
  }
}

TEST_F(RunInfoTest, AnOlderRunOfThePackageHasTheStatesOfItsFoldersAsLeftovers) {
  const std::string state =
      base_.Write(fmt::format("{}/penstock-{}.state", kOlderFolder, kUuid), "");
  const std::string left =
      base_.Write(fmt::format("{}/penstock-{}.state", kOlderFolder, kOtherUuid), "");
  const std::string left_1 =
      base_.Write(fmt::format("{}/penstock-{}.1.state", kOlderFolder, kOtherUuid), "");
  base_.Write(fmt::format("{}/penstock-mine.state", kOlderFolder), "");
  Json json = OfPackage(base_.Path(kOlderFolder));
  json["state"] = {{"uuid", kUuid}, {"paths", {state}}};
  SetText(json);
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->format, RunFormat::kOlderPackage);
  EXPECT_EQ(read->kind, RunKind::kOptimizer);
  EXPECT_EQ(read->run_uuid, "");
  EXPECT_FALSE(read->temporary);
  EXPECT_THAT(read->state->all(), ElementsAre(state));
  ASSERT_EQ(read->leftovers.size(), 1U);
  EXPECT_EQ(read->leftovers[0].uuid, kOtherUuid);
  EXPECT_THAT(read->leftovers[0].all(), ElementsAre(left_1, left));
}

TEST_F(RunInfoTest, AnOlderRunOfThePackageThatWasMovedHasNothingInItsOldFolders) {
  const std::string name = fmt::format("penstock-{}.state", kUuid);
  base_.Write(fmt::format("{}/penstock-{}.state", kOlderFolder, kOtherUuid), "");
  const std::string before = base_.Write(fmt::format("{}/{}", kOlderFolder, name), "");
  const std::string here = base_.Write("run/" + name, "");
  Json json = OfPackage(base_.Path(kOlderFolder));
  json["place"] = base_.Path("elsewhere");
  json["named"] = false;
  json["state"] = {{"uuid", kUuid}, {"paths", {before}}};
  SetText(json);
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->temporary);
  EXPECT_THAT(read->state->all(), ElementsAre(here));
  EXPECT_THAT(read->leftovers, IsEmpty());
}

TEST_F(RunInfoTest, AnOlderRunOfThePackageHasNothingInFoldersThatWereNotMadeForIt) {
  base_.Write(fmt::format("nvme/penstock-{}.state", kOtherUuid), "");
  SetText(OfPackage(base_.Path("nvme")));
  const Result<RunInfo> read = Read();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read->leftovers, IsEmpty());
}

}  // namespace
}  // namespace penstock::train
