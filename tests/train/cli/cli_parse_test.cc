#include "train/cli/cli_parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "train/process/log.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Train(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train",  "--model", "m",     "--config", "c",
                                        "--data", "d",       "--out", "r"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TrainOptions ParsedTrain(const std::vector<std::string>& more = {}) {
  const Result<Command> command = ParseCommandLine(Train(more));
  EXPECT_TRUE(command.ok()) << command.error().message;
  return std::get<TrainOptions>(*command);
}

template <typename Of>
const Of& Tool(const Command& command) {
  return std::get<Of>(std::get<ToolCommand>(command));
}

TEST(CommandLine, TrainHasTheContractsDefaults) {
  const TrainOptions options = ParsedTrain();
  EXPECT_EQ(options.model, "m");
  EXPECT_THAT(options.configs, ElementsAre("c"));
  EXPECT_EQ(options.data, "d");
  EXPECT_EQ(options.out, "r");
  EXPECT_FALSE(options.steps.has_value());
  EXPECT_FALSE(options.device_memory.has_value());
  EXPECT_FALSE(options.host_memory.has_value());
  EXPECT_FALSE(options.sequence_length.has_value());
  EXPECT_EQ(options.device, DeviceChoice::kAuto);
  EXPECT_FALSE(options.seed.has_value());
  EXPECT_FALSE(options.data_order.has_value());
  EXPECT_FALSE(options.resume);
}

TEST(CommandLine, AnUnknownOptionIsNamedThoughAnotherIsMissing) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    const Result<Command> command = ParseCommandLine(arguments);
    return command.ok() ? "none" : command.error().message;
  };
  EXPECT_EQ(refusal({"train", "--modle", "m"}),
            "unknown option --modle; penstock train --help lists the options");
  EXPECT_EQ(refusal({"--vresion"}), "unknown option --vresion; penstock --help lists the options");
  EXPECT_EQ(refusal({"snapshot", "--", "r"}),
            "NAME is required; penstock snapshot --help lists the options");
  EXPECT_EQ(refusal({"train", "--model", "m"}),
            "--config is required; penstock train --help lists the options");
}

TEST(CommandLine, TrainTakesEveryOption) {
  const TrainOptions options =
      ParsedTrain({"--steps", "0", "--seed", "7", "--device", "cpu", "--device-memory", "64MiB",
                   "--host-memory", "4096", "--sequence-length", "33", "--data-order", "sequential",
                   "--resume"});
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.steps, 0U);
  EXPECT_EQ(options.seed, 7U);
  EXPECT_EQ(options.device, DeviceChoice::kCpu);
  EXPECT_EQ(options.device_memory, 64_MiB);
  EXPECT_EQ(options.host_memory, 4096_B);
  EXPECT_EQ(options.sequence_length, 33U);
  EXPECT_EQ(options.data_order, DataOrder::kSequential);
}

TEST(CommandLine, ConfigMayBeRepeatedAndKeepsItsOrder) {
  EXPECT_THAT(ParsedTrain({"--config", "b", "--config", "a"}).configs, ElementsAre("c", "b", "a"));
}

TEST(CommandLine, AResumedRunMayChangeSeveralKeys) {
  const std::vector<RequestedChange> changes =
      ParsedTrain({"--resume", "--change", "gradient_clipping=0", "--change",
                   "optimizer.params.betas=[0.9, 0.95]"})
          .changes;
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].key, "gradient_clipping");
  EXPECT_EQ(changes[1].value, "[0.9, 0.95]");
  EXPECT_EQ(
      ParsedTrain({"--resume-from", "kept", "--change", "gradient_clipping=0"}).changes.size(), 1U);
}

TEST(CommandLine, AResumedRunMayPassOverSteps) {
  EXPECT_THAT(ParsedTrain({"--resume", "--skip-steps", "3:5", "--skip-steps", "9:9"}).skips,
              ElementsAre(StepRange{3, 5}, StepRange{9, 9}));
}

TEST(CommandLine, ExportTakesADtype) {
  const Result<Command> command =
      ParseCommandLine({"export", "run", "--to", "x", "--dtype", "bf16"});
  ASSERT_TRUE(command.ok()) << command.error().message;
  const auto& options = Tool<ExportCommand>(*command);
  EXPECT_EQ(options.run, "run");
  EXPECT_EQ(options.to, "x");
  EXPECT_EQ(options.dtype, DType::kBFloat16);
  EXPECT_EQ(Tool<ExportCommand>(*ParseCommandLine({"export", "run", "--to", "x"})).dtype,
            DType::kFloat32);
}

TEST(CommandLine, InspectTakesARun) {
  const Result<Command> command = ParseCommandLine({"inspect", "run"});
  ASSERT_TRUE(command.ok()) << command.error().message;
  EXPECT_EQ(Tool<InspectCommand>(*command).run, "run");
}

TEST(CommandLine, TuneTakesEveryOptionAndNeedsOnlyThePath) {
  const Result<Command> least = ParseCommandLine({"tune", "--nvme-path", "p"});
  ASSERT_TRUE(least.ok()) << least.error().message;
  const auto& defaults = Tool<TuneCommand>(*least);
  EXPECT_EQ(defaults.nvme_path, "p");
  EXPECT_FALSE(defaults.size.has_value());
  EXPECT_EQ(defaults.out, "");
  EXPECT_EQ(defaults.plot, "");
  EXPECT_FALSE(defaults.quick);
  const Result<Command> all = ParseCommandLine(
      {"tune", "--nvme-path", "p", "--size", "64MiB", "--out", "f", "--plot", "s", "--quick"});
  ASSERT_TRUE(all.ok()) << all.error().message;
  const auto& options = Tool<TuneCommand>(*all);
  EXPECT_EQ(options.size, 64_MiB);
  EXPECT_EQ(options.out, "f");
  EXPECT_EQ(options.plot, "s");
  EXPECT_TRUE(options.quick);
}

TEST(CommandLine, AnOptionThatMayComeSeveralTimesTakesOneWordEachTime) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"doctor", "--config", "a", "run"},
        std::vector<std::string>{"doctor", "run", "--config", "a"}}) {
    const Result<Command> command = ParseCommandLine(words);
    ASSERT_TRUE(command.ok()) << command.error().message;
    EXPECT_THAT(Tool<DoctorCommand>(*command).configs, ElementsAre("a"));
    EXPECT_EQ(Tool<DoctorCommand>(*command).run, "run");
  }
  for (const std::string option : {"--config", "--change", "--skip-steps"}) {
    EXPECT_FALSE(ParseCommandLine(Train({option, "1:2", "1:2"})).ok()) << option;
  }
}

TEST(CommandLine, DoctorNamesWhatToLookAtAndNeedsNothing) {
  const Result<Command> least = ParseCommandLine({"doctor"});
  ASSERT_TRUE(least.ok()) << least.error().message;
  EXPECT_TRUE(Tool<DoctorCommand>(*least).run.empty());
  const Result<Command> all = ParseCommandLine(
      {"doctor", "--config", "a", "--config", "b", "--nvme-path", "p", "--bug-report", "f", "run"});
  ASSERT_TRUE(all.ok()) << all.error().message;
  const auto& options = Tool<DoctorCommand>(*all);
  EXPECT_THAT(options.configs, ElementsAre("a", "b"));
  EXPECT_EQ(options.nvme_path, "p");
  EXPECT_EQ(options.bug_report, "f");
  EXPECT_EQ(options.run, "run");
}

TEST(CommandLine, LaunchTakesItsOptionsAndTheCommandOfTheRanks) {
  std::vector<std::string> line = {"launch", "--ranks", "4", "--"};
  const std::vector<std::string> ranks = Train({"--data-order", "sequential"});
  line.insert(line.end(), ranks.begin(), ranks.end());
  const Result<Command> least = ParseCommandLine(line);
  ASSERT_TRUE(least.ok()) << least.error().message;
  const auto& defaults = std::get<LaunchCommand>(*least);
  EXPECT_EQ(defaults.ranks, 4U);
  EXPECT_EQ(defaults.arguments, ranks);
  EXPECT_EQ(defaults.hostfile, "");
  EXPECT_FALSE(defaults.master_port.has_value());
  const std::vector<std::string> more = {"--hostfile", "h", "--master-port", "65535"};
  line.insert(line.begin() + 3, more.begin(), more.end());
  const Result<Command> all = ParseCommandLine(line);
  ASSERT_TRUE(all.ok()) << all.error().message;
  const auto& options = std::get<LaunchCommand>(*all);
  EXPECT_EQ(options.hostfile, "h");
  EXPECT_EQ(options.master_port, 65535);
  EXPECT_EQ(options.arguments, ranks);
}

TEST(CommandLine, HelpOfALaunchIsThatOfTheCommandThatAsksForIt) {
  const auto help = [](const std::vector<std::string>& line) {
    const Result<Command> command = ParseCommandLine(line);
    EXPECT_TRUE(command.ok()) << command.error().message;
    return Tool<PrintText>(*command).text;
  };
  EXPECT_THAT(help({"launch", "--help"}), HasSubstr("penstock launch --ranks 4 -- train"));
  EXPECT_THAT(help({"launch", "--ranks", "2", "--", "train", "--help"}),
              HasSubstr("--sequence-length"));
}

TEST(CommandLine, CompareTakesTwoModels) {
  const Result<Command> command = ParseCommandLine({"compare", "x", "y"});
  ASSERT_TRUE(command.ok()) << command.error().message;
  EXPECT_EQ(Tool<CompareCommand>(*command).a, "x");
  EXPECT_EQ(Tool<CompareCommand>(*command).b, "y");
}

TEST(CommandLine, CleanRemovesOnlyWithYes) {
  const Result<Command> command = ParseCommandLine({"clean", "run"});
  ASSERT_TRUE(command.ok()) << command.error().message;
  EXPECT_EQ(Tool<CleanCommand>(*command).run, "run");
  EXPECT_FALSE(Tool<CleanCommand>(*command).yes);
  EXPECT_TRUE(Tool<CleanCommand>(*ParseCommandLine({"clean", "run", "--yes"})).yes);
}

TEST(CommandLine, HelpAndVersionAreTexts) {
  const Result<Command> help = ParseCommandLine({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_THAT(Tool<PrintText>(*help).text, HasSubstr("inspect"));
  const Result<Command> train_help = ParseCommandLine({"train", "--help"});
  ASSERT_TRUE(train_help.ok());
  EXPECT_THAT(Tool<PrintText>(*train_help).text, HasSubstr("--sequence-length"));
  const Result<Command> version = ParseCommandLine({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(Tool<PrintText>(*version).text, HasSubstr("penstock "));
}

struct BadLine {
  std::vector<std::string> arguments;
  std::string names;  ///< what the message must name
};

class BadCommandLine : public ::testing::TestWithParam<BadLine> {};

TEST_P(BadCommandLine, IsOneLineThatNamesTheMistakeAndExitsWithTwo) {
  const Result<Command> command = ParseCommandLine(GetParam().arguments);
  ASSERT_FALSE(command.ok());
  EXPECT_EQ(ExitCode(command.error().code), 2);
  EXPECT_THAT(command.error().message, HasSubstr(GetParam().names));
  EXPECT_THAT(command.error().message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Lines, BadCommandLine,
    ::testing::Values(
        BadLine{{}, "a command is required"}, BadLine{{"trian"}, "trian"},
        BadLine{{"train"}, "required"},
        BadLine{{"train", "--model", "m", "--config", "c", "--data", "d"}, "--out"},
        BadLine{Train({"--stpes", "3"}), "--stpes"}, BadLine{Train({"--steps", "-1"}), "--steps"},
        BadLine{Train({"--steps", "many"}), "--steps"}, BadLine{Train({"--device", "tpu"}), "tpu"},
        BadLine{Train({"--sequence-length", "0"}), "\"0\" is not a whole number from 1 to"},
        BadLine{Train({"--device-memory", "20000000TiB"}),
                "\"20000000TiB\" is not a size up to 9223372036854775807 bytes"},
        BadLine{Train({"--device-memory", "64MB"}), "64MB"},
        BadLine{Train({"--data-order", "random"}), "random"},
        BadLine{Train({"--change", "gradient_clipping=0"}), "give --resume"},
        BadLine{Train({"--skip-steps", "3:5"}), "give --resume"},
        BadLine{Train({"--resume", "--skip-steps", "5:3"}), "--skip-steps 5:3"},
        BadLine{Train({"--resume", "--change", "seed=1"}), "--change seed"},
        BadLine{Train({"--resume", "--change", "gradient_clipping"}), "KEY=VALUE"},
        BadLine{{"tune", "--quick"}, "--nvme-path"}, BadLine{{"launch"}, "after --"},
        BadLine{{"launch", "--ranks", "2"}, "after --"},
        BadLine{{"launch", "--ranks", "2", "--"}, "after --"},
        BadLine{{"launch", "--ranks", "2", "train"}, "after --"},
        BadLine{{"launch", "--", "train"}, "--ranks is required"},
        BadLine{{"launch", "--ranks", "0", "--", "train"}, "\"0\" is not a whole number from 1 to"},
        BadLine{{"launch", "--ranks", "65537", "--", "train"}, "to 65536"},
        BadLine{{"launch", "--ranks", "2", "--master-port", "0", "--", "train"}, "--master-port"},
        BadLine{{"launch", "--ranks", "2", "--hostfile", "", "--", "train"}, "names nothing"},
        BadLine{{"launch", "--rnaks", "2", "--", "train"}, "unknown option --rnaks"},
        BadLine{{"launch", "--ranks", "2", "--", "clean", "r"},
                "\"clean\" cannot run on several ranks"},
        BadLine{{"launch", "--ranks", "2", "--", "train", "--stpes"}, "--stpes"},
        BadLine{{"tune", "--nvme-path", "p", "--size", "1GB"}, "1GB"},
        BadLine{{"export", "run"}, "--to"},
        BadLine{{"export", "run", "--to", "x", "--dtype", "int8"},
                "\"int8\" is none of fp32, bf16, fp16"},
        BadLine{{"export", "run", "--to", "x", "--dtype", "2"},
                "\"2\" is none of fp32, bf16, fp16"},
        BadLine{Train({"--steps"}), "--steps needs a value"},
        BadLine{Train({"--steps", "1", "--steps", "2"}), "--steps is given more than once"},
        BadLine{Train({"--data-loader", "x"}), "unknown option --data-loader"},
        BadLine{{"clean", "r", "--yes=maybe"}, "--yes takes no value"},
        BadLine{{"inspect", "a", "b"}, "\"b\" is not expected"},
        BadLine{{"plan", "--model", "m", "--tune", "t", "--drive", "1,1"}, "exclude each other"},
        BadLine{{"plan", "--model", "m", "--link", "0"}, "--link: 0 is not in (0, 1000000000];"},
        BadLine{{"plan", "--model", "m", "--drive", "7;5"}, "--drive: \"7;5\" is not GB/s"},
        BadLine{{"plan", "--model", "m", "--drive", "7,"}, "as in 7.0,5.0"},
        BadLine{{"plan", "--model", "m", "--tensor-parallel", "1,,2"},
                "--tensor-parallel: \"\" is not a whole number"},
        BadLine{{"doctor", "--ranks", "4", "--nodes", "3"}, "--nodes 3 does not divide --ranks 4"},
        BadLine{{"doctor", "--ranks", "4"}, "--ranks needs a configuration"},
        BadLine{{"inspect"}, "RUN"}, BadLine{{"compare", "a"}, "B"}, BadLine{{"clean"}, "RUN"}));

TEST(CommandLine, NumbersAreDecimalDigitsOf64BitsAndNothingElse) {
  const std::string largest = "18446744073709551615";
  EXPECT_EQ(ParsedTrain({"--seed", largest}).seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ParsedTrain({"--steps", "010"}).steps, 10U);
  for (const char* option : {"--steps", "--seed", "--sequence-length"}) {
    for (const char* text :
         {"", "-1", "abc", "1e3", "0x10", "1.0", "18446744073709551616", "99999999999999999999"}) {
      const Result<Command> command = ParseCommandLine(Train({option, text}));
      ASSERT_FALSE(command.ok()) << option << " " << text;
      EXPECT_EQ(ExitCode(command.error().code), 2);
      EXPECT_THAT(command.error().message, HasSubstr(std::string(option) + ": \"" + text + "\""));
      EXPECT_THAT(command.error().message, HasSubstr("to " + largest + ";"));
      EXPECT_LT(command.error().message.size(), 160U);
    }
  }
}

TEST(CommandLine, AnEmptyNameIsRefusedWhereverOneIsAskedFor) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lines = {
      {"--model", {"train", "--model", "", "--config", "c", "--data", "d", "--out", "r"}},
      {"--config", Train({"--config", ""})},
      {"--data", {"train", "--model", "m", "--config", "c", "--data", "", "--out", "r"}},
      {"--out", {"train", "--model", "m", "--config", "c", "--data", "d", "--out", ""}},
      {"--trace", Train({"--trace", ""})},
      {"--resume-from", Train({"--resume-from", ""})},
      {"--change", Train({"--change", ""})},
      {"--skip-steps", Train({"--skip-steps", ""})},
      {"RUN", {"export", "", "--to", "x"}},
      {"--to", {"export", "run", "--to", ""}},
      {"RUN", {"inspect", ""}},
      {"A", {"compare", "", "b"}},
      {"B", {"compare", "a", ""}},
      {"RUN", {"clean", ""}},
      {"RUN", {"snapshot", "", "n"}},
      {"NAME", {"snapshot", "run", ""}},
      {"RUN", {"snapshots", ""}},
      {"--nvme-path", {"tune", "--nvme-path", ""}},
      {"RUN", {"doctor", ""}},
      {"--out", {"tune", "--nvme-path", "p", "--out", ""}},
      {"--plot", {"tune", "--nvme-path", "p", "--plot", ""}}};
  for (const auto& [option, line] : lines) {
    const Result<Command> command = ParseCommandLine(line);
    ASSERT_FALSE(command.ok()) << option;
    EXPECT_EQ(ExitCode(command.error().code), 2);
    EXPECT_THAT(command.error().message, HasSubstr(option + ": \"\" names nothing"));
  }
}

TEST(ExitCodes, FollowTheKindOfFailure) {
  EXPECT_EQ(ExitCode(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(ExitCode(ErrorCode::kBudget), 2);
  EXPECT_EQ(ExitCode(ErrorCode::kNotFound), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kPermission), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kOutOfSpace), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kOutOfMemory), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kIo), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kUnavailable), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kCorruption), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kNumeric), 4);
  EXPECT_EQ(ExitCode(ErrorCode::kCancelled), 130);
}

}  // namespace
}  // namespace penstock::train
