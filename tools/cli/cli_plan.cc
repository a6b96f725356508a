#include "tools/cli/cli_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "tools/cli/cli_checks.h"
#include "tools/cli/cli_plan_modes.h"

namespace penstock::train {
namespace {

constexpr double kMaxSpeed = 1e9;

constexpr uint64_t kMaxTensorParallel = uint64_t{1} << 20;
constexpr double kMaxTokens = 1e18;  // steps are counted in 64 bits

/// Returns a number above 0; nothing for a text that is none.
std::optional<double> ParsePositive(std::string_view text, double most = kMaxSpeed) {
  const Result<double> value =
      ParseReal(std::string(text), {.low = std::numeric_limits<double>::min(), .high = most});
  return value.ok() ? std::optional(*value) : std::nullopt;
}

Result<GivenDrive> ParseDrive(const std::string& text) {
  const std::string_view all = text;
  const size_t comma = all.find(',');
  const std::optional<double> read = ParsePositive(all.substr(0, comma));
  const std::optional<double> write =
      comma == std::string_view::npos ? read : ParsePositive(all.substr(comma + 1));
  if (read && write) return GivenDrive{.read_gbps = *read, .write_gbps = *write};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--drive {}: give GB/s read and written, as in --drive 7.0,5.0", text);
}

void AddMachine(CLI::App* plan, PlanArguments* arguments) {
  plan->add_option("--device", arguments->device,
                   "cpu, cuda or auto; this machine need not have it")
      ->check(OneOf({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  AddRanks(*plan, &arguments->ranks);
  plan->add_option("--device-memory", arguments->device_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  plan->add_option("--host-memory", arguments->host_memory, "64MiB, 1GiB or bytes")
      ->check(SizeCheck());
  CLI::Option* const tune =
      plan->add_option("--tune", arguments->options.speed.tune, "file of penstock tune --out")
          ->check(NameCheck());
  plan->add_option("--drive", arguments->drive, "READ,WRITE: the drive's speed in GB/s")
      ->check(NameCheck())
      ->excludes(tune);
  plan->add_option(
          "--drive-capacity", arguments->drive_capacity,
          "space for state files on a node's drives: 2TiB, 64MiB or bytes (default: the free "
          "space of this machine)")
      ->check(SizeCheck());
  plan->add_option("--device-tflops", arguments->device_tflops,
                   "operations a second of the device's kernels, in 10^12 (default: measured, on "
                   "the CPU device)")
      ->check(NameCheck());
  plan->add_option("--link", arguments->link,
                   "GB/s that a rank sends to others, and receives at the same time")
      ->check(NameCheck());
}

/// `unit`: what a number is of, for messages. Nothing is given by an empty text.
Result<std::optional<double>> PositiveOrNone(const std::string& text, const char* option,
                                             const char* unit, double most = kMaxSpeed) {
  if (text.empty()) return std::optional<double>();
  const std::optional<double> value = ParsePositive(text, most);
  if (value) return value;
  return MakeError(ErrorCode::kInvalidArgument, "{} {}: give a number above 0, up to {:g}, in {}",
                   option, text, most, unit);
}

/// "1,2,4"
Result<std::vector<uint64_t>> ParseTensorParallel(const std::string& text) {
  std::vector<uint64_t> counts;
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const Result<uint64_t> count =
        ParseWhole(text.substr(begin, end - begin), {.low = 1, .high = kMaxTensorParallel});
    if (!count.ok()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "--tensor-parallel {}: {}; give numbers of GPUs as in 1,2,4,8", text,
                       count.error().message);
    }
    counts.push_back(*count);
    begin = end + 1;
  }
  return counts;
}

/// Without a config a plan says what needs none.
Status CheckConfigs(const PlanCommand& options) {
  if (!options.configs.empty() || options.as_deepspeed || options.topologies ||
      !options.tensor_parallel.empty()) {
    return {};
  }
  if (options.training_tokens > 0 && options.speed.device_tflops) return {};
  if (options.training_tokens > 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--tokens needs a speed: give --config, or --device-tflops for the length of "
                     "a training by its size alone");
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "--config is required; penstock plan --help lists the options");
}

/// What a plan says beyond one setup, or by the arithmetic of others.
void AddSizing(CLI::App* plan, PlanArguments* arguments) {
  plan->add_option("--choose", arguments->choose,
                   "speed or memory: compare placements and micro-batches, the best first")
      ->check(OneOf({"speed", "memory"}));
  plan->add_option("--as", arguments->as, "deepspeed: the results of DeepSpeed's estimator")
      ->check(OneOf({"deepspeed"}));
  plan->add_option("--topologies", arguments->topologies,
                   "ways for the ranks to share the model; FILE: those of a CSV file")
      ->expected(0, 1);
  plan->add_option("--global-batch", arguments->global_batch,
                   "samples of a step, for --topologies, or --tokens without --config")
      ->check(WholeCheck({.low = 1}));
  plan->add_option("--tokens", arguments->tokens,
                   "tokens of the whole training, like 300e9: days and GPU hours")
      ->check(NameCheck());
  plan->add_option("--drive-rating", arguments->drive_rating,
                   "rating of each drive, 600TBW or 3DWPD,1.92TB,5y: days until it is reached")
      ->check(NameCheck());
  plan->add_option("--tensor-parallel", arguments->tensor_parallel,
                   "1,2,4: bytes of a layer on each of this many GPUs")
      ->check(NameCheck());
}

/// Topologies of a file have their batches.
Status SetTopologies(const PlanArguments& arguments, PlanCommand& options) {
  if (arguments.plan->get_option("--topologies")->count() == 0) return {};
  options.topologies = arguments.topologies;
  if (!options.topologies->empty() || options.global_batch > 0 || !options.configs.empty()) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "--topologies needs the samples of a step: give --global-batch, or a --config "
                   "with train_batch_size");
}

}  // namespace

CLI::App* AddPlan(CLI::App& app, PlanArguments* arguments) {
  PlanCommand& options = arguments->options;
  CLI::App* plan = app.add_subcommand(
      "plan", "Predict the memory and step time of a training without running it");
  plan->add_option("--model", options.model,
                   "config.json, a folder that holds one, or a shape such as "
                   "gpt2:h=12288,l=96,v=50257,s=2048")
      ->required()
      ->check(NameCheck());
  plan->add_option("--config", options.configs, "JSON in DeepSpeed's format; later files override")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(NameCheck());
  AddMachine(plan, arguments);
  plan->add_option("--sequence-length", arguments->sequence_length, "tokens in a row")
      ->check(WholeCheck({.low = 1}));
  AddSizing(plan, arguments);
  arguments->plan = plan;
  AddAutoFlags(*plan, &arguments->auto_flags);
  plan->add_flag("--json", options.json, "one JSON object instead of a table");
  return plan;
}

Result<ToolCommand> MakePlan(const PlanArguments& arguments) {
  PlanCommand options = arguments.options;
  options.device = arguments.device == "cpu"    ? DeviceChoice::kCpu
                   : arguments.device == "cuda" ? DeviceChoice::kCuda
                                                : DeviceChoice::kAuto;
  PENSTOCK_TRY(CheckPlanOptions(*arguments.plan));
  PENSTOCK_ASSIGN(options.auto_flags, MakeAutoFlags(arguments.auto_flags));
  options.as_deepspeed = !arguments.as.empty();
  options.global_batch = NumberOrNone(arguments.global_batch).value_or(0);
  PENSTOCK_TRY(SetTopologies(arguments, options));
  PENSTOCK_ASSIGN(const RankCounts counts, MakeRanks(arguments.ranks));
  options.ranks = counts.ranks;
  options.nodes = counts.nodes;
  options.device_memory = SizeOrNone(arguments.device_memory);
  options.host_memory = SizeOrNone(arguments.host_memory);
  options.drive_capacity = SizeOrNone(arguments.drive_capacity);
  options.sequence_length = NumberOrNone(arguments.sequence_length);
  if (!arguments.drive.empty()) {
    PENSTOCK_ASSIGN(options.speed.drive, ParseDrive(arguments.drive));
  }
  PENSTOCK_ASSIGN(
      options.speed.device_tflops,
      PositiveOrNone(arguments.device_tflops, "--device-tflops", "10^12 operations a second"));
  PENSTOCK_ASSIGN(options.speed.link_gbps,
                  PositiveOrNone(arguments.link, "--link", "GB/s (10^9 bytes)"));
  PENSTOCK_ASSIGN(const std::optional<double> tokens,
                  PositiveOrNone(arguments.tokens, "--tokens", "tokens", kMaxTokens));
  options.training_tokens = tokens.value_or(0);
  if (!arguments.drive_rating.empty()) {
    PENSTOCK_ASSIGN(options.rating, ParseDriveRating(arguments.drive_rating));
  }
  PENSTOCK_ASSIGN(options.tensor_parallel, ParseTensorParallel(arguments.tensor_parallel));
  PENSTOCK_TRY(CheckConfigs(options));
  if (!arguments.choose.empty()) {
    options.choose = arguments.choose == "speed" ? PlanGoal::kSpeed : PlanGoal::kMemory;
  }
  return ToolCommand(std::move(options));
}

}  // namespace penstock::train
