// What plan's options make of each other.
#include "tools/cli/cli_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/cli/command_line.h"
#include "tools/cli/tool_parser.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

using Words = std::vector<std::string>;

/// A question, by the options that ask it, and what its answer depends on besides.
struct Question {
  Words asked;
  std::set<std::string> takes;
};

const std::set<std::string> kOfConfig = {"--learning-rate",
                                         "--adam-beta1",
                                         "--adam-beta2",
                                         "--adam-epsilon",
                                         "--weight-decay",
                                         "--max-grad-norm",
                                         "--warmup-steps",
                                         "--warmup-ratio",
                                         "--fp16",
                                         "--bf16",
                                         "--per-device-train-batch-size",
                                         "--gradient-accumulation-steps"};
const std::set<std::string> kOfRun = {
    "--device",          "--device-tflops", "--device-memory", "--host-memory", "--tune",
    "--drive",           "--link",          "--ranks",         "--nodes",       "--choose",
    "--sequence-length", "--tokens",        "--drive-rating",  "--topologies",  "--drive-capacity"};

std::set<std::string> Both(std::set<std::string> a, const std::set<std::string>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

std::vector<Question> Questions() {
  const std::set<std::string> of_topologies = {"--config", "--nodes", "--device-memory",
                                               "--device-tflops", "--link"};
  return {
      {.asked = {"--config", "c"}, .takes = Both(kOfRun, kOfConfig)},
      {.asked = {"--as", "deepspeed"}, .takes = {"--ranks", "--nodes"}},
      {.asked = {"--topologies", "--global-batch", "8"}, .takes = Both(of_topologies, {"--ranks"})},
      {.asked = {"--topologies", "--config", "c"},
       .takes = Both(Both(of_topologies, {"--ranks", "--global-batch"}), kOfConfig)},
      {.asked = {"--topologies", "file"}, .takes = of_topologies},
      {.asked = {"--tensor-parallel", "2"}, .takes = {}},
      {.asked = {"--tokens", "1e9", "--device-tflops", "1"},
       .takes = {"--config", "--ranks", "--global-batch"}},
  };
}

Words ValueOf(const std::string& option) {
  static const std::map<std::string, std::string> values = {
      {"--as", "deepspeed"},   {"--choose", "speed"},
      {"--config", "c"},       {"--device", "cpu"},
      {"--drive", "1,1"},      {"--drive-rating", "600TBW"},
      {"--tune", "t"},         {"--device-memory", "1"},
      {"--host-memory", "1"},  {"--tensor-parallel", "2"},
      {"--adam-beta1", "0.5"}, {"--adam-beta2", "0.5"}};
  if (option == "--topologies" || option == "--fp16" || option == "--bf16") return {};
  if (option == "--nodes") return {"2", "--ranks", "2"};
  const auto value = values.find(option);
  return {value != values.end() ? value->second : "1"};
}

Words With(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Result<ToolCommand> Parsed(const Words& words) {
  CLI::App app;
  std::optional<Result<ToolCommand>> tool;
  AddTools(app, [&tool](const Result<ToolCommand>& given) { tool = given; });
  PENSTOCK_TRY(ReadArguments(app, With({"plan", "--model", "m"}, words)).status());
  return *tool;
}

bool IsIn(const Words& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

TEST(CommandLinePlan, AnOptionIsTakenExactlyWhereTheAnswerDependsOnIt) {
  CLI::App app;
  AddPlan(app, [](const Result<ToolCommand>&) {});
  const CLI::App* plan = app.get_subcommand("plan");
  size_t refused = 0;
  for (const Question& question : Questions()) {
    ASSERT_TRUE(Parsed(question.asked).ok()) << Parsed(question.asked).error().message;
    for (const CLI::Option* option : plan->get_options()) {
      const std::string name = option->get_name();
      if (name == "--help" || name == "--model" || name == "--json") continue;
      if (IsIn(question.asked, name)) continue;
      const Words given = With(With(question.asked, {name}), ValueOf(name));
      const Result<ToolCommand> command = Parsed(given);
      SCOPED_TRACE(question.asked.front() + " with " + name);
      if (question.takes.contains(name)) {
        EXPECT_TRUE(command.ok()) << command.error().message;
        continue;
      }
      ++refused;
      ASSERT_FALSE(command.ok());
      EXPECT_THAT(command.error().message, HasSubstr("has no effect on a plan by "));
    }
  }
  EXPECT_GT(refused, 100U);
}

TEST(CommandLinePlan, AListOfChoicesHasDaysAndWearAsJsonOnly) {
  const Words choose = {"--config", "c", "--choose", "speed"};
  for (const Words& more : {Words{"--tokens", "1e9"}, Words{"--drive-rating", "600TBW"}}) {
    const Result<ToolCommand> command = Parsed(With(choose, more));
    ASSERT_FALSE(command.ok());
    EXPECT_EQ(
        command.error().message,
        more[0] + " has no effect on a plan by --choose without --json; leave one of them out");
    EXPECT_TRUE(Parsed(With(With(choose, more), {"--json"})).ok());
  }
}

TEST(CommandLinePlan, WhatAsksNothingIsAskedForItsConfig) {
  const Result<ToolCommand> command = Parsed({"--drive", "1", "--fp16"});
  ASSERT_FALSE(command.ok());
  EXPECT_THAT(command.error().message, HasSubstr("--config is required"));
}

}  // namespace
}  // namespace penstock::train
