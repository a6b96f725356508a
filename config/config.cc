#include "config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "config/sections.h"

namespace penstock::config {
namespace {

/// The largest number of steps that a scheduler takes.
constexpr uint64_t kMaxScheduledSteps = uint64_t{1} << 53;

}  // namespace

void ReadConfig(JsonReader& reader, ConfigDraft& draft) {
  reader.Read([&](JsonSection& top) {
    ReadBatch(top, draft);
    ReadPrecision(top, draft);
    ReadOptimizer(reader, top, draft);
    ReadScheduler(top, draft);
    ReadZero(top, draft);
    ReadAio(top, draft);
    ReadPenstock(top, draft);
    ReadMonitors(top, draft.config);
    ReadOthers(top, draft);
  });
}

Result<Config> ParseConfig(const std::vector<ConfigSource>& sources, uint64_t world_size,
                           const AutoSources& automatic) {
  PENSTOCK_CHECK(world_size > 0 && world_size <= std::numeric_limits<int32_t>::max());
  JsonDocument document;
  for (const ConfigSource& source : sources) {
    PENSTOCK_TRY(document.Merge(source.name, source.text));
  }
  ConfigDraft draft;
  draft.world_size = world_size;
  PENSTOCK_TRY(MoveMisplaced(document, draft.config.notices));
  PENSTOCK_ASSIGN(AutoOutcome outcome, ResolveAuto(document, automatic));
  draft.config.scheduler.warmup_ratio = outcome.warmup_ratio;
  draft.config.scheduler.ratio_for_auto = outcome.ratio_for_auto;
  JsonReader reader(document);
  for (AutomaticKey& key : outcome.keys) reader.AddAutomatic(std::move(key));
  ReadConfig(reader, draft);
  PENSTOCK_TRY(reader.status());
  CheckBatch(reader, draft);
  CheckRampup(reader, draft);
  CheckScheduler(reader, draft);
  CheckHomes(reader, draft);
  PENSTOCK_TRY(reader.status());
  draft.config.superseded = reader.superseded();
  draft.config.automatic = reader.automatic();
  std::ranges::sort(draft.config.automatic, {}, &AutomaticKey::path);
  if (outcome.precision_is_trainers && draft.config.dtype == kernels::DType::kFloat32) {
    draft.config.notices.emplace_back(
        "precision: fp32; --bf16 halves the bytes of weights, gradients and activations");
  }
  return std::move(draft.config);
}

bool NeedsLastStep(const Config& config) {
  return config.scheduler.total_is_last_step || config.scheduler.warmup_ratio.has_value();
}

Status SetLastStep(uint64_t last_step, const std::string& source, Config& config) {
  SchedulerConfig& scheduler = config.scheduler;
  if (!NeedsLastStep(config)) return {};
  const char* const total = "scheduler.params.total_num_steps";
  const char* const warmup = "scheduler.params.warmup_num_steps";
  if (last_step == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: it depends on the last step, and {} is 0; give it a number of steps",
                     scheduler.total_is_last_step ? total : warmup, source);
  }
  const auto list = [&](const char* path, bool given, int64_t value, const std::string& from) {
    config.automatic.push_back(
        {.path = path, .given = given, .value = fmt::format("{}", value), .source = from});
  };
  if (scheduler.total_is_last_step) {
    scheduler.total_num_steps = static_cast<int64_t>(std::min(last_step, kMaxScheduledSteps));
    list(total, true, scheduler.total_num_steps, "the last step, by " + source);
  }
  if (scheduler.warmup_ratio) {
    const double steps = std::ceil(static_cast<double>(std::min(last_step, kMaxScheduledSteps)) *
                                   *scheduler.warmup_ratio);
    scheduler.warmup_num_steps = std::max<int64_t>(2, static_cast<int64_t>(steps));
    list(warmup, scheduler.ratio_for_auto, static_cast<int64_t>(steps),
         fmt::format("--warmup-ratio {} of {} steps", *scheduler.warmup_ratio, last_step));
  }
  scheduler.total_is_last_step = false;
  scheduler.warmup_ratio.reset();
  std::ranges::sort(config.automatic, {}, &AutomaticKey::path);
  return {};
}

std::vector<std::string> NoticesOf(const Config& config) {
  std::vector<std::string> lines;
  const auto add = [&lines](const std::string& line) { lines.push_back("config: " + line); };
  for (const std::string& line : SupersededLines(config.superseded)) add(line);
  for (const AutomaticKey& key : config.automatic) add(ToText(key));
  for (const std::string& line : config.notices) add(line);
  return lines;
}

namespace {

const char* HomeName(Tier tier) {
  return tier == Tier::kDevice ? "the device" : tier == Tier::kHost ? "the host" : "nvme";
}

}  // namespace

std::string PlacementText(const Config& config) {
  if (config.parameter_home == config.optimizer_home) {
    return fmt::format("everything on {}", HomeName(config.parameter_home));
  }
  return fmt::format("weights on {}, optimizer states on {}", HomeName(config.parameter_home),
                     HomeName(config.optimizer_home));
}

bool UsesNvme(const Config& config) {
  return config.parameter_home == Tier::kNvme || config.optimizer_home == Tier::kNvme;
}

}  // namespace penstock::config
