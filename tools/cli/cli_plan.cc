#include "tools/cli/cli_plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "tools/cli/cli_auto.h"
#include "tools/cli/cli_machine.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/cli_plan_modes.h"

namespace penstock::train {
namespace {

constexpr RealRange kSpeed = {.high = 1e9, .above = true};
constexpr RealRange kTokens = {.high = 1e18, .above = true};  // steps are counted in 64 bits
constexpr WholeRange kTensorParallel = {.low = 1, .high = uint64_t{1} << 20};

/// "7.0,5.0", or "7.0" for both.
Result<GivenDrive> ParseDrive(const std::string& text) {
  const size_t comma = text.find(',');
  const Result<double> read = ParseReal(text.substr(0, comma), kSpeed);
  const Result<double> write =
      comma == std::string::npos ? read : ParseReal(text.substr(comma + 1), kSpeed);
  if (read.ok() && write.ok()) return GivenDrive{.read_gbps = *read, .write_gbps = *write};
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"{}\" is not GB/s read and written, as in 7.0,5.0", text);
}

/// "1,2,4"
Result<std::vector<uint64_t>> ParseTensorParallel(const std::string& text) {
  std::vector<uint64_t> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const Result<uint64_t> count = ParseWhole(text.substr(begin, end - begin), kTensorParallel);
    if (!count.ok()) {
      return MakeError(ErrorCode::kInvalidArgument, "{}; give numbers of GPUs as in 1,2,4,8",
                       count.error().message);
    }
    counts.push_back(*count);
    begin = end + 1;
  }
  return counts;
}

void AddMachine(CLI::App& plan, PlanCommand* options) {
  AddDevice(plan, &options->device, "cpu, cuda or auto; this machine need not have it");
  AddRanks(plan, &options->ranks, &options->nodes);
  AddMemory(plan, &options->device_memory, &options->host_memory);
  GivenSpeed& speed = options->speed;
  CLI::Option* const tune = AddName(plan, "--tune", &speed.tune, "file of penstock tune --out");
  AddValue<GivenDrive>(plan, "--drive", &speed.drive, ParseDrive,
                       "READ,WRITE: the drive's speed in GB/s")
      ->excludes(tune);
  AddSize(plan, "--drive-capacity", &options->drive_capacity,
          "space for state files on a node's drives: 2TiB, 64MiB or bytes (default: the free "
          "space of this machine)");
  AddReal(plan, "--device-tflops", &speed.device_tflops, kSpeed,
          "operations a second of the device's kernels, in 10^12 (default: measured, on the CPU "
          "device)");
  AddReal(plan, "--link", &speed.link_gbps, kSpeed,
          "GB/s that a rank sends to others, and receives at the same time");
  AddWhole(plan, "--sequence-length", &options->sequence_length, {.low = 1}, "tokens in a row");
}

/// What a plan says beyond one setup, or by the arithmetic of others.
void AddSizing(CLI::App& plan, PlanCommand* options) {
  AddWord(plan, "--choose", &options->choose,
          {{"speed", PlanGoal::kSpeed}, {"memory", PlanGoal::kMemory}},
          "speed or memory: compare placements and micro-batches, the best first");
  AddWord(plan, "--as", &options->as_deepspeed, {{"deepspeed", true}},
          "deepspeed: the results of DeepSpeed's estimator");
  plan.add_option("--topologies", options->topologies,
                  "ways for the ranks to share the model; FILE: those of a CSV file")
      ->expected(0, 1);
  AddWhole(plan, "--global-batch", &options->global_batch, {.low = 1},
           "samples of a step, for --topologies, or --tokens without --config");
  AddReal(plan, "--tokens", &options->training_tokens, kTokens,
          "tokens of the whole training, like 300e9: days and GPU hours");
  AddValue<DriveRating>(
      plan, "--drive-rating", &options->rating, ParseDriveRating,
      "rating of each drive, 600TBW or 3DWPD,1.92TB,5y: days until it is reached");
  AddValue<std::vector<uint64_t>>(plan, "--tensor-parallel", &options->tensor_parallel,
                                  ParseTensorParallel,
                                  "1,2,4: bytes of a layer on each of this many GPUs");
}

/// Without a config a plan says what needs none.
Status CheckConfigs(const PlanCommand& options) {
  if (!options.configs.empty() || options.as_deepspeed || !options.tensor_parallel.empty()) {
    return {};
  }
  if (options.topologies) {
    // Topologies of a file have their batches.
    if (!options.topologies->empty() || options.global_batch > 0) return {};
    return MakeError(ErrorCode::kInvalidArgument,
                     "--topologies needs the samples of a step: give --global-batch, or a "
                     "--config with train_batch_size");
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

Result<ToolCommand> Checked(const CLI::App& plan, const PlanCommand& options) {
  PENSTOCK_TRY(CheckPlanOptions(plan));
  PENSTOCK_TRY(CheckRanks(options.ranks, options.nodes));
  PENSTOCK_TRY(CheckConfigs(options));
  return ToolCommand(options);
}

}  // namespace

void AddPlan(CLI::App& app, const TakeTool& take) {
  const auto [plan, options] = AddCommand<PlanCommand>(
      app, "plan", "Predict the memory and step time of a training without running it",
      [&app, take](const PlanCommand& filled) {
        take(Checked(*app.get_subcommand("plan"), filled));
      });
  AddName(*plan, "--model", &options->model,
          "config.json, a folder that holds one, or a shape such as "
          "gpt2:h=12288,l=96,v=50257,s=2048")
      ->required();
  AddNames(*plan, "--config", &options->configs,
           "JSON in DeepSpeed's format; later files override");
  AddMachine(*plan, options);
  AddSizing(*plan, options);
  AddAutoFlags(*plan, &options->auto_flags);
  plan->add_flag("--json", options->json, "one JSON object instead of a table");
}

}  // namespace penstock::train
