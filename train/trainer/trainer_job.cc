#include "train/trainer/trainer_job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/strict_json.h"
#include "train/plan/planned_speed.h"
#include "train/process/log.h"
#include "train/weights/weights.h"
#include "zero/lr_schedule.h"

namespace penstock::train {
namespace {

constexpr size_t kNamesInMessage = 5;

Status CheckPaths(const TrainOptions& options, const config::Config& config) {
  PENSTOCK_TRY(CheckPath(options.data, "--data"));
  for (const std::string& path : config.nvme_paths) PENSTOCK_TRY(CheckPath(path, "nvme_path"));
  return {};
}

/// The first of `names`, and that there are more.
std::string NamesForMessage(const std::vector<std::string>& names) {
  const size_t said = std::min(names.size(), kNamesInMessage);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + said, ", "),
                     said < names.size() ? ", …" : "");
}

struct OpenedData {
  BatchReader reader;
  uint64_t fingerprint;
};

Result<OpenedData> OpenData(const TrainOptions& options, const ModelSource& model,
                            uint64_t sequence) {
  const uint64_t vocabulary = model.description->sizes().vocabulary;
  PENSTOCK_ASSIGN(std::unique_ptr<TokenData> tokens, TokenData::Open(options.data));
  PENSTOCK_ASSIGN(const uint64_t fingerprint, Fingerprint(*tokens, vocabulary));
  PENSTOCK_ASSIGN(BatchReader reader, BatchReader::Create(std::move(tokens), *options.data_order,
                                                          *options.seed, sequence, vocabulary));
  return OpenedData{std::move(reader), fingerprint};
}

/// The weights with which a training begins, and their origin, for messages.
struct StartingWeights {
  zero::TensorSource source;  ///< none if a commit has them
  std::string origin;
};

StartingWeights RandomWeights(const ModelSource& model, uint64_t seed) {
  std::string origin = fmt::format("random, seed {}", seed);
  if (!model.weight_names.empty()) {
    origin += fmt::format(" (--init random: what {} holds is not read: {})", model.folder,
                          NamesForMessage(model.weight_names));
  }
  return {model.description->Initialization(seed), std::move(origin)};
}

/// The weights beside the config, or new ones. Damaged files are a wrong model (exit 2), like a
/// damaged config, and no failure of the environment.
Result<StartingWeights> NewWeights(const TrainOptions& options, const ModelSource& model,
                                   const zero::ModelSpec& spec) {
  if (options.init_random || model.weight_names.empty()) {
    return RandomWeights(model, *options.seed);
  }
  if (model.weights.files.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--model: {} holds weights that are not read: {}; only *.safetensors are: "
                     "convert them (save_pretrained of transformers; for DeepSpeed "
                     "zero_to_fp32.py --safe_serialization), or train new ones with --init random",
                     model.folder, NamesForMessage(model.weight_names));
  }
  Result<WeightFiles> files = OpenWeights(model.weights, spec, model.family->names());
  if (!files.ok() && files.error().code == ErrorCode::kCorruption) {
    return Error{ErrorCode::kInvalidArgument, files.error().message};
  }
  PENSTOCK_TRY(files.status());
  LogNotices(files->notices);
  const size_t count = model.weights.files.size();
  return StartingWeights{
      std::move(files->source),
      fmt::format("{} file{} of {}", count, count == 1 ? "" : "s", model.folder)};
}

StartingWeights CommittedWeights(const TrainOptions& options, const zero::TrainState& from) {
  std::string origin = fmt::format("the commit of step {}", from.step);
  if (options.resume_from) origin += fmt::format(", snapshot {}", *options.resume_from);
  if (options.init_random) origin += " (--init random is for the beginning of a run)";
  return {nullptr, std::move(origin)};
}

}  // namespace

Result<config::Config> ReadConfig(const TrainOptions& options, uint32_t ranks,
                                  const ResumePoint* from) {
  return ReadConfig(ConfigChoice{.files = options.configs,
                                 .changes = ConfigTexts(options.changes),
                                 .auto_flags = options.auto_flags,
                                 .resumed = from == nullptr ? "" : from->identity,
                                 .device_memory = options.device_memory,
                                 .host_memory = options.host_memory},
                    ranks);
}

Result<TrainJob> PrepareJob(const TrainOptions& options, const ResumePoint* from,
                            ModelFamilies families, const RankPlace& place) {
  const comm::World& world = place.world;
  const bool begins_with_others = from != nullptr || options.init_random;
  PENSTOCK_ASSIGN(
      ModelSource model,
      ReadModel(options.model, begins_with_others ? WeightsBeside::kIgnore : WeightsBeside::kFind,
                families));
  PENSTOCK_ASSIGN(config::Config config, ReadConfig(options, world.size, from));
  PENSTOCK_TRY(CheckPaths(options, config));
  if (from != nullptr && config.compute_threads == 0) {
    config.compute_threads = static_cast<int>(from->train.compute_threads);
  }
  PENSTOCK_ASSIGN(const std::optional<Bytes> gpu, FindGpu(options.device));
  const device::Kind kind = gpu.has_value() ? device::Kind::kCuda : device::Kind::kCpu;
  ChooseThreads(kind, place.share, &config);
  PENSTOCK_ASSIGN(const uint64_t sequence,
                  SequenceLength(options.sequence_length, model.description->sizes().positions,
                                 model.config_path));
  PENSTOCK_ASSIGN(OpenedData data, OpenData(options, model, sequence));
  const BatchShape shape = ShapeOf(config, sequence, world.size);
  uint64_t last_step = options.steps.value_or(0);
  if (!options.steps.has_value()) {
    PENSTOCK_ASSIGN(last_step, EpochSteps(data.reader.rows(), RampupOf(config)));
  }
  PENSTOCK_TRY(config::SetLastStep(
      last_step, options.steps.has_value() ? "--steps" : "one epoch of the data", config));
  PENSTOCK_TRY(zero::CheckBetas(config.scheduler, last_step));
  PENSTOCK_ASSIGN(std::string data_path, AbsolutePath(options.data));
  zero::ModelSpec spec = model.description->Spec();
  const auto machine = [&] { return ReadOfferedMemory(gpu, world.local_size); };
  PENSTOCK_ASSIGN(MemoryNeeds needs, SumMemoryNeeds({.spec = spec,
                                                     .model = *model.description,
                                                     .shape = shape,
                                                     .config = config,
                                                     .kind = kind,
                                                     .world = world},
                                                    machine));
  PENSTOCK_ASSIGN(const MemoryBudget budget, DecideBudget(needs, config, machine));
  LogNotices(model.notices);
  LogNotices(config::NoticesOf(config));
  StartingWeights weights;
  if (from != nullptr) {
    weights = CommittedWeights(options, from->train);
  } else {
    PENSTOCK_ASSIGN(weights, NewWeights(options, model, spec));
  }
  LogNotice("weights: " + weights.origin);
  TrainJob job{.model = std::move(model),
               .config = std::move(config),
               .spec = std::move(spec),
               .weights = std::move(weights.source),
               .shape = shape,
               .data = std::move(data.reader),
               .data_path = std::move(data_path),
               .data_fingerprint = data.fingerprint,
               .last_step = last_step,
               .device = kind,
               .world = world,
               .needs = std::move(needs),
               .budget = budget};
  // Measures before the run takes its memory, because measuring needs some.
  if (!job.config.rampup) job.speed = SpeedOf(job.planned());
  return job;
}

Status CheckPath(const std::string& path, const char* option) {
  PENSTOCK_ASSIGN(const std::string absolute, AbsolutePath(path));
  if (FitsJson(absolute)) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "{} {}: the absolute path is not UTF-8, and what the run writes about itself can "
      "hold no other; use another path",
      option, path);
}

Result<uint64_t> EpochSteps(uint64_t rows, const BatchRampup& rampup) {
  const uint64_t first = rampup.BatchAfter(0);
  if (rows < first) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "the data has {} rows, and a step takes {}: there is no whole step in an epoch; "
        "give --steps, more data or a smaller batch",
        rows, first);
  }
  return rampup.StepsWithin(rows);
}

}  // namespace penstock::train
