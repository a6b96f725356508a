// The flags of `train` that give "auto" its value: which texts they take, and what they make of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/auto.h"
#include "train/cli/cli_parse.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

Result<Command> Parse(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",  "--model", "m",     "--config", "c",
                                        "--data", "d",       "--out", "r"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return ParseCommandLine(arguments);
}

config::AutoFlags Flags(const std::vector<std::string>& more) {
  const Result<Command> command = Parse(more);
  EXPECT_TRUE(command.ok()) << (command.ok() ? "" : command.error().message);
  return command.ok() ? std::get<TrainOptions>(*command).auto_flags : config::AutoFlags{};
}

TEST(AutoFlags, NoneIsGivenByItself) { EXPECT_EQ(Flags({}), config::AutoFlags{}); }

TEST(AutoFlags, EachGivesItsOwnValue) {
  const config::AutoFlags most = {.learning_rate = 5e-5,
                                  .adam_beta1 = 0.8,
                                  .adam_beta2 = 0.99,
                                  .adam_epsilon = 1e-6,
                                  .weight_decay = 0.1,
                                  .max_grad_norm = 0,
                                  .warmup_steps = 0,
                                  .per_device_train_batch_size = 4,
                                  .gradient_accumulation_steps = 3,
                                  .bf16 = true};
  EXPECT_EQ(Flags({"--learning-rate", "5e-5", "--adam-beta1", "0.8", "--adam-beta2", ".99",
                   "--adam-epsilon", "1E-6", "--weight-decay", "0.1", "--max-grad-norm", "-0.0",
                   "--warmup-steps", "0", "--per-device-train-batch-size", "4",
                   "--gradient-accumulation-steps", "3", "--bf16"}),
            most);
  EXPECT_EQ(Flags({"--warmup-ratio", "1", "--fp16"}),
            (config::AutoFlags{.warmup_ratio = 1, .fp16 = true}));
}

TEST(AutoFlags, WhatIsNoSuchNumberIsRefused) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--learning-rate", ""}, "--learning-rate: \"\" is not a number like 5e-5"},
      {{"--learning-rate", "fast"}, "\"fast\" is not a number"},
      {{"--learning-rate", "nan"}, "\"nan\" is not a number"},
      {{"--learning-rate", "inf"}, "\"inf\" is not a number"},
      {{"--learning-rate", "1e999"}, "\"1e999\" is not a number"},
      {{"--learning-rate", "1 "}, "\"1 \" is not a number"},
      {{"--learning-rate", "-1"}, "-1 is not in [0, infinity)"},
      {{"--adam-beta1", "1"}, "1 is not in [0, 1)"},
      {{"--adam-beta2", "1.5"}, "1.5 is not in [0, 1)"},
      {{"--warmup-ratio", "1.5"}, "1.5 is not in [0, 1]"},
      {{"--warmup-steps", "1e3"}, "--warmup-steps: \"1e3\""},
      {{"--per-device-train-batch-size", "0"}, "--per-device-train-batch-size: \"0\""},
      {{"--gradient-accumulation-steps", "2147483648"}, "\"2147483648\""},
      {{"--warmup-steps", "3", "--warmup-ratio", "0.1"},
       "--warmup-steps and --warmup-ratio exclude each other; keep one"},
      {{"--fp16", "--bf16"}, "--fp16 and --bf16 exclude each other; keep one"},
  };
  for (const auto& [arguments, expected] : kCases) {
    const Result<Command> command = Parse(arguments);
    ASSERT_FALSE(command.ok()) << expected;
    EXPECT_EQ(ExitCode(command.error().code), 2);
    EXPECT_THAT(command.error().message, HasSubstr(expected));
  }
}

}  // namespace
}  // namespace penstock::train
